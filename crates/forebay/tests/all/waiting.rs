//! Waiting for futures that are made of the engine's, and the engine's clock.

use std::time::{Duration, Instant};

use crate::common::config;
use forebay::{Class, Engine, ErrorKind};

#[test]
fn a_plain_thread_waits_for_any_future() {
    let engine = Engine::start(config()).unwrap();
    let sum = engine.block_on(async {
        let mut sum = 0;
        for n in 0..10 {
            engine.nop().await.unwrap();
            sum += engine
                .spawn_on_shard(n % engine.shard_count(), Class::DEFAULT, move || async move { n })
                .await
                .unwrap();
        }
        sum
    });
    assert_eq!(sum.unwrap(), 45);
    // Several concurrent threads, and futures of another crate.
    let (send, receive) = async_channel::bounded(1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| engine.block_on(receive.recv()).unwrap().unwrap());
        scope.spawn(|| engine.block_on(send.send(7)).unwrap().unwrap());
        assert_eq!(first.join().unwrap(), 7);
    });
}

#[test]
fn a_shard_does_not_wait() {
    let engine = Engine::start(config()).unwrap();
    let inner = engine.clone();
    let asked = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        inner.block_on(async { panic!("polled") }).unwrap_err().kind()
    });
    assert_eq!(asked.wait().unwrap(), ErrorKind::WaitOnShard);
}

#[test]
fn the_clock_goes_on_at_the_usual_rate() {
    let engine = Engine::start(config()).unwrap();
    // The thread may be preempted for long at any point: the engine's time is between an interval inside of it and one outside.
    let outside = Instant::now();
    let began_ns = engine.now_ns();
    let inside = Instant::now();
    while inside.elapsed() < Duration::from_millis(5) {}
    let inside = inside.elapsed().as_nanos() as u64;
    let elapsed_ns = engine.now_ns().saturating_sub(began_ns);
    let outside = outside.elapsed().as_nanos() as u64;
    assert!(elapsed_ns >= inside / 5 * 4 && elapsed_ns < 2 * outside, "{inside} {elapsed_ns} {outside}");
}
