//! The functions as Rust calls them: refusals, and that structs have the layout that the header promises.

use std::ffi::{CStr, CString, c_int};
use std::mem::offset_of;
use std::ptr;

use forebay_c::*;

fn last_sentence() -> String {
    // SAFETY: the text lives until the next failure of this thread.
    unsafe { CStr::from_ptr(fb_error_text()) }.to_str().unwrap().to_owned()
}

fn is(code: c_int, wanted: Code) -> bool {
    code == wanted as c_int
}

fn started() -> *mut Engine {
    let mut engine = ptr::null_mut();
    // SAFETY: no settings, and a place for the handle.
    let code = unsafe { fb_engine_start(ptr::null(), &mut engine) };
    assert!(is(code, Code::Ok), "{}", last_sentence());
    engine
}

#[test]
fn structs_have_no_gaps_and_lie_as_in_c() {
    // A gap would hold bytes of the caller's stack, which no library may judge.
    assert_eq!(offset_of!(Request, file), size_of::<usize>());
    assert_eq!(size_of::<Config>(), size_of::<usize>() + 16 + 24);
    assert_eq!(size_of::<Open>(), size_of::<usize>() + 16);
    assert_eq!(size_of::<Stats>(), size_of::<usize>() + 80);
    if cfg!(target_pointer_width = "64") {
        let sizes = [size_of::<Class>(), size_of::<Request>(), size_of::<Outcome>(), size_of::<Notice>()];
        assert_eq!(sizes, [56, 56, 32, 32]);
        assert_eq!(size_of::<CloseReport>(), 32);
    }
}

#[test]
fn null_pointers_are_refused_with_a_sentence() {
    // SAFETY: null is refused before it is followed.
    unsafe {
        assert!(is(fb_engine_start(ptr::null(), ptr::null_mut()), Code::InvalidInput));
        assert!(last_sentence().contains("engine"), "{}", last_sentence());
        assert!(is(fb_engine_close(ptr::null_mut(), ptr::null_mut()), Code::InvalidInput));
        assert!(is(fb_file_close(ptr::null_mut()), Code::InvalidInput));
        assert!(last_sentence().contains("file"), "{}", last_sentence());
        assert!(is(fb_submit(ptr::null(), 1, ptr::null(), ptr::null_mut()), Code::InvalidInput));
        assert!(is(fb_op_wait(ptr::null_mut(), -1, ptr::null_mut()), Code::InvalidInput));
        assert!(is(fb_op_free(ptr::null_mut()), Code::Ok), "as free(NULL)");
    }
}

#[test]
fn a_file_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = CString::new(dir.path().join("data").to_str().unwrap()).unwrap();
    let engine = started();
    let open = Open {
        size: size_of::<Open>(),
        access: FB_CREATE_NEW,
        mode: FB_BUFFERED,
        permissions: 0o600,
        truncate: 0,
    };
    let mut file = ptr::null_mut();
    let mut bytes = [0u8; 8];
    let (mut moved, mut op) = (0u64, ptr::null_mut());
    // SAFETY: handles, a path that ends, and memory that outlives the calls; the operation has ended before its memory is freed.
    unsafe {
        assert!(is(fb_file_open(engine, path.as_ptr(), &open, &mut file), Code::Ok), "{}", last_sentence());
        assert!(is(fb_file_open(engine, path.as_ptr(), &open, &mut ptr::null_mut()), Code::AlreadyExists));
        assert!(is(fb_write(file, b"forebay".as_ptr().cast(), 7, 0, FB_DURABLE_NONE), Code::Ok));
        assert!(is(fb_read(file, bytes.as_mut_ptr().cast(), 8, 0, &mut moved), Code::Ok));
        assert_eq!((moved, &bytes[..7]), (7, &b"forebay"[..]));
        let request = Request {
            size: size_of::<Request>(),
            file,
            data: bytes.as_mut_ptr().cast(),
            len: 3,
            offset: 4,
            op: FB_OP_READ,
            class_id: FB_CLASS_LOG,
            durability: FB_DURABLE_NONE,
            reserved: 0,
        };
        assert!(is(fb_submit(&request, 1, ptr::null(), &mut op), Code::Ok));
        assert!(is(fb_op_wait(op, -1, ptr::null_mut()), Code::Ok));
        assert_eq!(&bytes[..3], b"bay");
        assert!(is(fb_op_free(op), Code::Ok));
        assert!(is(fb_file_close(file), Code::Ok));
        assert!(is(fb_engine_close(engine, ptr::null_mut()), Code::Ok));
    }
}
