// Reads the first 64 KiB of a file in 16 requests at once, into memory of Go, and prints a sum.
//
//	go build read.go && ./read FILE
package main

// #cgo pkg-config: forebay
// #include <forebay.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

const (
	reads = 16
	size  = 4096
)

// pinned has the memory of the reads, which fb_submit leaves in flight when it returns.
var pinned runtime.Pinner

// call returns the failure of a call of libforebay, whose sentence its thread has.
func call(name string, function func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code := function(); code != C.FB_OK {
		return fmt.Errorf("%s: %s: %s", name, C.GoString(C.fb_code_name(code)), C.GoString(C.fb_error_text()))
	}
	return nil
}

func sum(file *C.fb_file, memory []byte) (total uint64, err error) {
	pinned.Pin(&memory[0])
	// After a failure it stays: that may be FB_MEMORY_LOST.
	defer func() {
		if err == nil {
			pinned.Unpin()
		}
	}()

	var ops []*C.fb_op
	for n := 0; n < reads && err == nil; n++ {
		request := C.fb_request{file: file, data: unsafe.Pointer(&memory[n*size]), len: size, offset: C.uint64_t(n * size), op: C.FB_OP_READ}
		request.size = C.size_t(unsafe.Sizeof(request))
		var op *C.fb_op
		if err = call("submit", func() C.int { return C.fb_submit(&request, 1, nil, &op) }); err == nil {
			ops = append(ops, op)
		}
	}
	// Each is waited for, also after a failure: it has the memory until then.
	for n, op := range ops {
		var outcome C.fb_outcome
		outcome.size = C.size_t(unsafe.Sizeof(outcome))
		if failure := call("read", func() C.int { return C.fb_op_wait(op, -1, &outcome) }); failure != nil {
			err = failure
		}
		for _, value := range memory[n*size : n*size+int(outcome.bytes)] {
			total += uint64(value)
		}
		C.fb_op_free(op)
	}
	return total, err
}

func run(path string) error {
	var engine *C.fb_engine
	if err := call("start", func() C.int { return C.fb_engine_start(nil, &engine) }); err != nil {
		return err
	}
	defer C.fb_engine_close(engine, nil)
	// CString allocates with malloc; the process ends soon.
	name := C.CString(path)
	open := C.fb_open{access: C.FB_READ_ONLY, mode: C.FB_ADAPTIVE}
	open.size = C.size_t(unsafe.Sizeof(open))
	var file *C.fb_file
	if err := call("open", func() C.int { return C.fb_file_open(engine, name, &open, &file) }); err != nil {
		return err
	}
	defer C.fb_file_close(file)
	total, err := sum(file, make([]byte, reads*size))
	if err == nil {
		fmt.Println("sum", total)
	}
	return err
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: read FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
