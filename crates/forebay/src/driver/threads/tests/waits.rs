//! When a wait ends: wakes, patience, limits.

use super::*;

#[test]
fn a_wake_ends_a_wait() {
    let mut driver = driver(4);
    let wake = driver.wake_handle();
    let waker = std::thread::spawn(move || wake.wake());
    assert!(
        complete(&mut driver, Wait::For { completions: 1, patience: None, limit: None, in_flight: 0 })
            .is_empty()
    );
    waker.join().unwrap();
}

#[test]
fn a_wake_that_nobody_waits_for_ends_the_next_wait_and_only_that() {
    let mut driver = driver(4);
    let wake = driver.wake_handle();
    let limited = Wait::For { completions: 1, patience: None, limit: Some(SHORT), in_flight: 0 };
    wake.wake();
    wake.wake();
    assert!(
        complete(&mut driver, Wait::For { completions: 1, patience: None, limit: None, in_flight: 0 })
            .is_empty()
    );
    let began = Instant::now();
    assert!(complete(&mut driver, limited).is_empty());
    assert!(began.elapsed() >= SHORT);
    wake.wake();
    assert!(complete(&mut driver, Wait::Poll).is_empty());
    let began = Instant::now();
    assert!(complete(&mut driver, limited).is_empty());
    assert!(began.elapsed() >= SHORT, "a poll heeds the wake as well");
    drop(driver);
    wake.wake();
}

#[test]
fn patience_ends_with_one_completion() {
    let mut driver = driver(4);
    submit(&mut driver, &nop(1));
    let began = Instant::now();
    let wait = Wait::For { completions: 2, patience: Some(SHORT), limit: Some(HANGS), in_flight: 0 };
    assert_eq!(complete(&mut driver, wait), [(1, 0)]);
    assert!(began.elapsed() >= SHORT, "two were asked for while there was patience");
    assert!(began.elapsed() < HANGS);
}

#[cfg(target_os = "linux")]
#[test]
fn without_patience_left_the_first_completion_ends_the_wait() {
    let mut driver = driver(4);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut memory = [0; 4];
    submit(&mut driver, &hanging(1, &reader, &mut memory));
    let limited = Wait::For {
        completions: 2,
        patience: Some(Duration::from_micros(1)),
        limit: Some(SHORT),
        in_flight: 0,
    };
    assert!(complete(&mut driver, limited).is_empty());
    let late = std::thread::spawn(move || writer.write_all(b"late").unwrap());
    let wait = Wait::For {
        completions: 2,
        patience: Some(Duration::from_micros(1)),
        limit: Some(HANGS),
        in_flight: 0,
    };
    assert_eq!(complete(&mut driver, wait), [(1, 4)]);
    late.join().unwrap();
}
