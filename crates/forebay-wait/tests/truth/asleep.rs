//! Programs whose reads are in flight while their threads sleep in calls that are not about files.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, opcode, types::Fd};

use crate::workload::{BLOCK, SLEEP, Truth, aligned, direct, measured, whole_process};

/// The ways in which a program waits for its ring.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Enter,
    Epoll,
    Poll,
    Select,
    Eventfd,
}

/// Returns the waits for events by the names of their workloads.
pub fn way(name: &str) -> Option<Way> {
    Some(match name {
        "ring-enter" => Way::Enter,
        "ring-epoll" => Way::Epoll,
        "ring-poll" => Way::Poll,
        "ring-select" => Way::Select,
        "ring-eventfd" => Way::Eventfd,
        _ => return None,
    })
}

fn checked(result: i32) -> OwnedFd {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just returned this descriptor, and nothing else has it.
    unsafe { OwnedFd::from_raw_fd(result) }
}

fn eventfd() -> OwnedFd {
    // SAFETY: the call has only numbers as arguments.
    checked(unsafe { libc::eventfd(0, 0) })
}

/// Returns an epoll that watches a descriptor.
fn epoll(on: RawFd) -> OwnedFd {
    // SAFETY: the call has only a number as argument.
    let epoll = checked(unsafe { libc::epoll_create1(0) });
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open and the event lives through the call.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, on, &raw mut event) };
    assert_eq!(result, 0);
    epoll
}

/// Sleeps until an event, a signal or the time limit.
fn sleep_in_epoll(epoll: &OwnedFd, limit: Option<Duration>) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let limit = limit.map_or(-1, |limit| limit.as_millis() as i32);
    // SAFETY: the descriptor is open and the memory holds one event.
    unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, limit) };
}

fn sleep_in_poll(on: RawFd) {
    let mut wanted = libc::pollfd { fd: on, events: libc::POLLIN, revents: 0 };
    // SAFETY: the one element lives through the call.
    unsafe { libc::poll(&raw mut wanted, 1, -1) };
}

fn sleep_in_select(on: RawFd) {
    // SAFETY: a set of descriptors is plain bits, of which all 0 is a valid one.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the number is a descriptor's, of which a test has few, and so within the set.
    unsafe { libc::FD_SET(on, &raw mut set) };
    let null = std::ptr::null_mut();
    // SAFETY: the set lives through the call; the others are not wanted.
    unsafe { libc::select(on + 1, &raw mut set, null, null, std::ptr::null_mut()) };
}

/// Starts a direct read of one block of the file.
fn submit(ring: &mut IoUring, file: &File, memory: *mut u8, place: u64) {
    let read = opcode::Read::new(Fd(file.as_raw_fd()), memory, BLOCK as u32).offset(place).build();
    // SAFETY: the callers keep descriptor and memory until the completion was reaped.
    unsafe { ring.submission().push(&read) }.expect("it has room");
    ring.submit().expect("it is taken");
}

fn blocks(file: &File) -> impl Iterator<Item = u64> + use<> {
    (0..file.metadata().expect("it is open").len()).step_by(BLOCK)
}

/// Reads the file block after block by a ring, and sleeps in one of the ways until each is there.
pub fn by_a_ring(path: &Path, way: Way) -> Truth {
    let file = direct(path);
    let (mut buffer, start) = aligned(BLOCK);
    let memory = buffer[start..].as_mut_ptr();
    let mut ring = IoUring::new(4).expect("rings can be made");
    let descriptor = ring.as_raw_fd();
    let mut event = File::from(eventfd());
    if matches!(way, Way::Eventfd) {
        ring.submitter().register_eventfd(event.as_raw_fd()).expect("rings take one");
    }
    let epoll = epoll(descriptor);
    measured(|| {
        for place in blocks(&file) {
            submit(&mut ring, &file, memory, place);
            let bytes = loop {
                if let Some(completion) = ring.completion().next() {
                    break completion.result();
                }
                match way {
                    Way::Enter => drop(ring.submit_and_wait(1)),
                    Way::Epoll => sleep_in_epoll(&epoll, None),
                    Way::Poll => sleep_in_poll(descriptor),
                    Way::Select => sleep_in_select(descriptor),
                    Way::Eventfd => drop(event.read(&mut [0; 8])),
                }
            };
            assert_eq!(bytes, BLOCK as i32);
        }
    })
}

/// An operation of libaio, as the kernel's interface has it.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    memory: u64,
    bytes: u64,
    place: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// Returns the read of a block.
fn reading(file: &File, memory: u64, place: u64) -> Operation {
    const PREAD: u16 = 0;
    Operation {
        opcode: PREAD,
        file: file.as_raw_fd() as u32,
        memory,
        bytes: BLOCK as u64,
        place: place as i64,
        ..Operation::default()
    }
}

/// Returns the number of a new context of libaio.
fn context() -> u64 {
    let mut context = 0_u64;
    // SAFETY: the call writes the context's number, which lives through it.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) }, 0);
    context
}

/// Starts reads, which the callers keep until their events are collected.
fn start(context: u64, reads: &[*mut Operation]) {
    // SAFETY: the callers keep the operations and their memory until their events are collected.
    let taken = unsafe { libc::syscall(libc::SYS_io_submit, context, reads.len(), reads.as_ptr()) };
    assert_eq!(taken, reads.len() as i64);
}

/// Waits for the event of a read.
fn collect(context: u64) {
    let mut events = [[0_u64; 4]; 1];
    let null = std::ptr::null::<libc::timespec>();
    // SAFETY: the memory holds one event.
    let got = unsafe { libc::syscall(libc::SYS_io_getevents, context, 1, 1, events.as_mut_ptr(), null) };
    assert_eq!((got, events[0][2]), (1, BLOCK as u64));
}

/// Reads the file by libaio, and sleeps in epoll for its eventfd or in io_getevents.
pub fn by_libaio(path: &Path, way: Way) -> Truth {
    const WITH_EVENTFD: u32 = 1;
    let file = direct(path);
    let (mut buffer, start_of) = aligned(BLOCK);
    let memory = buffer[start_of..].as_mut_ptr() as u64;
    let mut event = File::from(eventfd());
    let epoll = epoll(event.as_raw_fd());
    let context = context();
    measured(|| {
        for place in blocks(&file) {
            let mut operation = reading(&file, memory, place);
            (operation.flags, operation.eventfd) = (WITH_EVENTFD, event.as_raw_fd() as u32);
            start(context, &[&raw mut operation]);
            if matches!(way, Way::Epoll) {
                sleep_in_epoll(&epoll, None);
                event.read_exact(&mut [0; 8]).expect("it was signalled");
            }
            collect(context);
        }
    })
}

/// Reads two files by libaio: a block of each is one call, and each event another one.
pub fn by_libaio_of_two_files(path: &Path) -> Truth {
    let other = path.with_file_name("other.bin");
    std::fs::copy(path, &other).expect("it has space");
    let (file, other) = (direct(path), direct(&other));
    other.sync_all().expect("the disk works");
    let (mut buffer, start_of) = aligned(2 * BLOCK);
    let memory = buffer[start_of..].as_mut_ptr() as u64;
    let context = context();
    measured(|| {
        for place in blocks(&file) {
            let mut first = reading(&file, memory, place);
            let mut second = reading(&other, memory + BLOCK as u64, place);
            start(context, &[&raw mut first, &raw mut second]);
            collect(context);
            collect(context);
        }
    })
}

/// One thread owns the ring and sleeps for it; it hands each block to another one, which is parked meanwhile. They sleep at the same
/// time for the same read.
pub fn passed_on(path: &Path) -> Truth {
    let reader = std::thread::current();
    let (send, receive) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let truth = by_a_ring(&path, Way::Epoll);
            send.send(truth).expect("it is received");
            reader.unpark();
        });
        loop {
            if let Ok(truth) = receive.try_recv() {
                return truth;
            }
            std::thread::park();
        }
    })
}

/// A read is in flight, and the only thread sleeps for a socket that never has data. The truth is the time of the reads, and the
/// part of it that the thread slept.
pub fn for_a_socket(path: &Path) -> Truth {
    let file = direct(path);
    let (mut buffer, start) = aligned(BLOCK);
    let memory = buffer[start..].as_mut_ptr();
    let mut ring = IoUring::new(4).expect("rings can be made");
    let (mut socket, other) = UnixStream::pair().expect("sockets exist");
    other.set_read_timeout(Some(SLEEP / 10)).expect("they have one");
    socket.write_all(&[1]).expect("it has room");
    let mut truth = Truth::default();
    for place in blocks(&file) {
        let read = measured(|| {
            submit(&mut ring, &file, memory, place);
            loop {
                // The kernel runs the completion in here, and continues the sleep.
                let _ = (&other).read(&mut [0; 1]);
                if ring.completion().next().is_some() {
                    break;
                }
            }
        });
        truth.waited_ns += read.waited_ns;
        truth.passed_ns += read.passed_ns;
    }
    truth
}

/// Sleeps in all these calls with no file's operation in flight: the ring's operation waits for a socket.
pub fn idle() -> Truth {
    let (socket, _other) = UnixStream::pair().expect("sockets exist");
    let (file, silent) = (File::from(eventfd()), eventfd());
    whole_process(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| sleep_in_epoll(&epoll(socket.as_raw_fd()), Some(SLEEP)));
            for descriptor in [socket.as_raw_fd(), silent.as_raw_fd()] {
                scope.spawn(move || {
                    // The kernel may have it until the process ends.
                    let memory = Box::leak(Box::new([0; 8])).as_mut_ptr();
                    let mut ring = IoUring::new(4).expect("rings can be made");
                    let read = opcode::Read::new(Fd(descriptor), memory, 8).build();
                    // SAFETY: descriptor and memory outlive the operation.
                    unsafe { ring.submission().push(&read) }.expect("it has room");
                    ring.submit().expect("it is taken");
                    let limit = io_uring::types::Timespec::from(SLEEP);
                    let arguments = io_uring::types::SubmitArgs::new().timespec(&limit);
                    assert!(ring.submitter().submit_with_args(1, &arguments).is_err(), "the time is up");
                });
            }
            scope.spawn(|| {
                let limit = libc::timespec { tv_sec: SLEEP.as_secs() as i64, tv_nsec: 0 };
                let mut events = [[0_u64; 4]; 1];
                // SAFETY: the memory holds one event, and the time lives through the call.
                let got = unsafe {
                    libc::syscall(
                        libc::SYS_io_getevents,
                        context(),
                        1,
                        1,
                        events.as_mut_ptr(),
                        &raw const limit,
                    )
                };
                assert_eq!(got, 0);
            });
            scope.spawn(|| {
                std::thread::sleep(SLEEP);
                (&file).write_all(&1_u64.to_ne_bytes()).expect("it has room");
            });
            scope.spawn(|| (&file).read(&mut [0; 8]).expect("it is woken"));
        });
    })
}
