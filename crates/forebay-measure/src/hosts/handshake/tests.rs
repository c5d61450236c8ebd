//! Attacks that a stranger could try: wrong secrets, replays, changed bytes, other versions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use super::super::testing::pair;
use super::*;

fn key(letter: char) -> Key {
    let text: String = std::iter::repeat_n(letter, 43).chain(['=']).collect();
    Key::from_text(&text).expect("32 bytes")
}

/// Runs both sides over a connection, the agent's in a thread of its own.
fn shake(controller: Key, agent: Key) -> (anyhow::Result<Link>, anyhow::Result<Link>) {
    let (here, there) = pair();
    let other = std::thread::spawn(move || as_agent(there, &agent, Times::default()));
    let ours = as_controller(here, &controller, Times::default());
    (ours, other.join().expect("no panic"))
}

fn text<T>(result: anyhow::Result<T>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn the_same_secret_makes_a_link_in_both_directions() {
    let (ours, theirs) = shake(key('A'), key('A'));
    let (mut ours, mut theirs) = (ours.expect("same secret"), theirs.expect("same secret"));
    for number in 0..3_u32 {
        ours.sender.send(&number).expect("open");
        theirs.sender.send(&(number + 10)).expect("open");
        assert_eq!(theirs.receiver.receive::<u32>().expect("sent"), number);
        assert_eq!(ours.receiver.receive::<u32>().expect("sent"), number + 10);
    }
}

#[test]
fn another_secret_is_refused_on_both_sides_with_a_reason() {
    let (ours, theirs) = shake(key('A'), key('E'));
    assert!(text(ours).contains("another secret than this controller"));
    assert!(text(theirs).contains("the controller has another secret"));
}

#[test]
fn an_agent_without_the_secret_cannot_complete_the_handshake() {
    let (here, there) = pair();
    let impostor = std::thread::spawn(move || {
        next(&there, Times::default()).expect("a hello");
        frame::write(&there, &hello(Role::Agent).expect("random bytes")).expect("open");
        let proof = next(&there, Times::default()).expect("a proof");
        // The best that an impostor can do: return the controller's own proof.
        frame::write(&there, &proof).expect("open");
        there
    });
    let error = text(as_controller(here, &key('A'), Times::default()));
    assert!(error.contains("the agent has another secret"), "{error}");
    impostor.join().expect("no panic");
}

/// Records the bytes that pass through a connection towards the agent.
fn record(secret: &Key) -> Vec<u8> {
    let (controller, mut relay_in) = pair();
    let (mut relay_out, agent) = pair();
    let (one, two) = (secret.clone(), secret.clone());
    let there = std::thread::spawn(move || {
        let mut link = as_agent(agent, &two, Times::default()).expect("same secret");
        link.receiver.receive::<String>().expect("sent")
    });
    let here = std::thread::spawn(move || {
        let mut link = as_controller(controller, &one, Times::default()).expect("same secret");
        link.sender.send(&"format the disk").expect("open");
        link.sender.close();
    });
    let (mut back_from, mut back_to) =
        (relay_out.try_clone().expect("descriptors"), relay_in.try_clone().expect("descriptors"));
    let back = std::thread::spawn(move || {
        // Ends when the agent has gone.
        let _ = std::io::copy(&mut back_from, &mut back_to);
    });
    let mut seen = Vec::new();
    let mut piece = [0; 512];
    while let Ok(got) = relay_in.read(&mut piece)
        && got > 0
    {
        seen.extend_from_slice(&piece[..got]);
        relay_out.write_all(&piece[..got]).expect("the agent listens");
    }
    assert_eq!(there.join().expect("no panic"), "format the disk");
    here.join().expect("no panic");
    let _ = relay_out.shutdown(Shutdown::Both);
    back.join().expect("no panic");
    seen
}

#[test]
fn a_recorded_handshake_is_worth_nothing_the_second_time() {
    let secret = key('A');
    let recorded = record(&secret);
    let (mut stranger, agent) = pair();
    stranger.write_all(&recorded).expect("open");
    let error = text(as_agent(agent, &secret, Times::default()));
    assert!(error.contains("the controller has another secret"), "{error}");
}

#[test]
fn a_changed_byte_a_repeated_and_a_dropped_message_are_noticed() {
    // A tag of the right key over the wrong number or other bytes, as the receiver would get
    // it in an attack.
    let (ours, theirs) = shake(key('A'), key('A'));
    let (mut ours, mut theirs) = (ours.expect("same secret"), theirs.expect("same secret"));
    ours.sender.send(&1_u32).expect("open");
    theirs.receiver.receive::<u32>().expect("the first is right");

    let tagged = |link: &super::super::link::Sender, number: u64, text: &[u8]| {
        let mut body = text.to_vec();
        body.extend_from_slice(&link.tag_for_test(number, text));
        body
    };
    let repeated = tagged(&ours.sender, 0, b"1");
    let from_later = tagged(&ours.sender, 2, b"3");
    let mut changed = tagged(&ours.sender, 1, b"2");
    changed[0] ^= 1;
    let right = tagged(&ours.sender, 1, b"2");
    for wrong in [repeated, from_later, changed, b"short".to_vec()] {
        ours.sender.write_raw_for_test(&wrong);
        let error = text(theirs.receiver.receive::<u32>());
        assert!(error.contains("forged") || error.contains("without a tag"), "{error}");
    }
    // The check can also pass: the failures above came from the tags.
    ours.sender.write_raw_for_test(&right);
    assert_eq!(theirs.receiver.receive::<u32>().expect("right place, right key"), 2);
}

#[test]
fn a_message_cannot_be_sent_back_to_its_maker() {
    let (ours, theirs) = shake(key('A'), key('A'));
    let (mut ours, theirs) = (ours.expect("same secret"), theirs.expect("same secret"));
    let mut body = b"1".to_vec();
    body.extend_from_slice(&ours.sender.tag_for_test(0, b"1"));
    theirs.sender.write_raw_for_test(&body);
    assert!(text(ours.receiver.receive::<u32>()).contains("forged"));
}

#[test]
fn another_version_is_named_on_both_sides() {
    for (protocol, program) in [(2, env!("CARGO_PKG_VERSION")), (1, "9.9.9\u{1b}[31m")] {
        let (here, there) = pair();
        let agent = std::thread::spawn(move || as_agent(there, &key('A'), Times::default()));
        let hello = format!(r#"{{"forebay_protocol":{protocol},"program":{program:?},"future":[1]}}"#);
        frame::write(&here, hello.replace("\\u{1b}", "\\u001b").as_bytes()).expect("open");
        let result = next(&here, Times::default()).expect("a reason");
        let error = text(check(&result, Role::Agent));
        let known = text(agent.join().expect("no panic"));
        for sentence in [error, known] {
            assert!(sentence.contains("versions differ"), "{sentence}");
            assert!(sentence.contains(&format!("protocol {protocol}")), "{sentence}");
            assert!(!sentence.contains('\u{1b}'), "{sentence}");
        }
    }
}

#[test]
fn peers_of_another_protocol_are_distinguished_and_time_is_limited() {
    let (mut here, there) = pair();
    here.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("open");
    let error = text(as_agent(there, &key('A'), Times::default()));
    assert!(error.contains("at most 4096"), "{error}");

    let (here, there) = pair();
    frame::write(&here, b"hello?").expect("open");
    let error = text(as_agent(there, &key('A'), Times::default()));
    assert!(error.contains("not forebay"), "{error}");

    let (mut here, there) = pair();
    here.write_all(&[0, 0, 0, 200, b'{']).expect("open");
    let short = Times { handshake: Duration::from_millis(20), ..Times::default() };
    let error = text(as_agent(there, &key('A'), short));
    assert!(error.contains("1 of 200 bytes"), "{error}");
}

/// Regression: each of an agent's reads had 5 s for its first byte and 5 more for the rest, so that one
/// connection that sent a byte now and then held a slot for 20 s.
#[test]
fn a_handshake_that_drips_ends_at_its_deadline() {
    let (mut here, there) = pair();
    let short = Times { handshake: Duration::from_millis(300), ..Times::default() };
    let begun = std::time::Instant::now();
    let agent = std::thread::spawn(move || text(as_agent(there, &key('A'), short)));
    // Half of the time passes before the first byte; the message's end never comes.
    std::thread::sleep(Duration::from_millis(200));
    here.write_all(&[0, 0, 0, 200]).expect("open");
    let error = agent.join().expect("no panic");
    assert!(error.contains("0 of 200 bytes"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(480), "{:?}", begun.elapsed());
}

#[test]
fn two_controllers_do_not_make_a_pair() {
    let (here, there) = pair();
    let other = std::thread::spawn(move || as_controller(there, &key('A'), Times::default()));
    let ours = text(as_controller(here, &key('A'), Times::default()));
    assert!(ours.contains("two of the same kind"), "{ours}");
    assert!(other.join().expect("no panic").is_err());
}
