//! Several nodes and a network in a simulated world: what is separate, what one seed decides, what a power cut of one leaves.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Class, Config, Durability, Engine, ErrorKind, Open, Result, WorkerRings, shard};
use forebay_sim::net::{self, Address, Conditions, Socket};
use forebay_sim::{self as sim, FailureKind, Loss, Profile, World};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PAGE: usize = 4096;

fn start() -> Engine {
    Engine::start(Config::new()).unwrap()
}

/// Appends a page for each message to its log, and replies when it is durable.
async fn logger(conditions: Config) {
    let engine = Engine::start(conditions).unwrap();
    let log = engine.open("/log", Open::create()).await.unwrap();
    let mut end = log.metadata().await.unwrap().len();
    let mut socket = Socket::bind(1).unwrap();
    while let Ok(request) = socket.recv().await {
        let byte = request.bytes()[0];
        log.write(end, vec![byte; PAGE]).durable(Durability::Data).await.unwrap();
        end += PAGE as u64;
        request.reply(vec![byte]);
    }
}

/// Three loggers behind a bad network, clients that call them, and nodes that lose their power.
fn eventful(seed: u64, config: Config) -> (u64, u64, Duration, net::Traffic) {
    let mut world = World::new(seed).network(Conditions::hostile());
    world
        .run(async |_| {
            let begin = |number: u32| {
                let node = sim::node(number);
                node.set_drift_ppm(number as i32 * 1_000 - 2_000);
                node.spawn(logger(config.clone()))
            };
            for number in 1..=3 {
                sim::node(number).disk(Profile::nand()).unwrap();
                drop(begin(number));
            }
            let mut clients = Vec::new();
            for client in 4..=5u32 {
                clients.push(sim::node(client).spawn(async move {
                    let mut acknowledged = 0;
                    for call in 0..8u32 {
                        let to = Address::new(1 + (call + client) % 3, 1);
                        acknowledged += u32::from(net::call(to, vec![call as u8], 100 * MS).await.is_ok());
                    }
                    acknowledged
                }));
            }
            for round in 0..3u32 {
                let node = sim::node(1 + round);
                sim::sleep(Duration::from_micros(sim::random(200_000))).await.unwrap();
                node.power_cut().await;
                assert!(!node.is_on());
                sim::sleep(Duration::from_micros(sim::random(200_000))).await.unwrap();
                node.power_on();
                drop(begin(node.number()));
            }
            for client in clients {
                let acknowledged = client.await.unwrap();
                sim::note(&acknowledged.to_le_bytes());
            }
        })
        .unwrap();
    (world.history_digest(), world.steps(), world.now(), world.traffic())
}

#[test]
fn one_seed_is_one_history_of_all_nodes() {
    for config in [Config::new(), Config::new().worker_rings(WorkerRings::Always)] {
        let first = eventful(1, config.clone());
        assert_eq!(first, eventful(1, config.clone()));
        let second = eventful(2, config.clone());
        assert_eq!(second, eventful(2, config));
        assert_ne!(first.0, second.0);
    }
}

#[test]
fn nodes_lose_their_power_at_any_time() {
    let tried = sim::explore(0..60, |seed| {
        let rings = if seed % 2 == 0 { WorkerRings::Always } else { WorkerRings::Off };
        eventful(seed, Config::new().worker_rings(rings));
        Ok::<_, String>(())
    });
    tried.unwrap();
}

#[test]
fn a_node_sees_its_own_files_alone() {
    World::new(1)
        .run(async |engine| {
            let there = sim::node(1).spawn(async {
                assert_eq!(sim::current_node(), sim::node(1));
                let engine = start();
                engine.open("/a", Open::create()).await.unwrap().write(0, vec![1; PAGE]).await.unwrap();
                // Also from a task on a shard, and from a task of this task.
                let local = engine.clone();
                let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                    assert_eq!(sim::current_node(), sim::node(1));
                    local.open("/b", Open::create()).await.unwrap();
                });
                on_shard.await.unwrap();
                let child = sim::spawn(async { sim::current_node().number() });
                assert_eq!(child.await.unwrap(), 1);
                engine.read_dir("/").await.unwrap().len()
            });
            assert_eq!(there.await.unwrap(), 2);
            assert_eq!(sim::current_node(), sim::node(0));
            assert_eq!(engine.read_dir("/").await.unwrap().len(), 0);
            let error = engine.open("/a", Open::read()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert_eq!((sim::node(1).counts().writes, sim::node(0).counts().writes), (1, 0));
        })
        .unwrap();
}

/// Writes a page that is durable, and one that is not.
async fn half_durable(ready: Arc<Mutex<u32>>) -> Result<()> {
    let engine = start();
    let file = engine.open("/file", Open::create()).await?;
    file.write(0, vec![1; PAGE]).durable(Durability::Data).await?;
    file.write(PAGE as u64, vec![2; PAGE]).await?;
    *ready.lock().unwrap() += 1;
    std::future::pending().await
}

async fn pages() -> Result<[bool; 2]> {
    let engine = start();
    let file = engine.open("/file", Open::read()).await?;
    let read = async |page: u64, byte: u8| {
        let read = file.read(page * PAGE as u64..(page + 1) * PAGE as u64).await;
        read.is_ok_and(|block| block[..] == [byte; PAGE])
    };
    Ok([read(0, 1).await, read(1, 2).await])
}

#[test]
fn a_cut_node_loses_what_was_not_synced_and_the_others_lose_nothing() {
    let mut lost = 0;
    for seed in 0..40 {
        World::new(seed)
            .run(async |_| {
                let ready = Arc::new(Mutex::new(0));
                for number in 1..=2 {
                    sim::node(number).disk(Profile::nand()).unwrap();
                    drop(sim::node(number).spawn(half_durable(ready.clone())));
                }
                while *ready.lock().unwrap() < 2 {
                    sim::sleep(MS).await.unwrap();
                }
                sim::node(1).power_cut().await;
                sim::node(1).power_on();
                let [synced, unsynced] = sim::node(1).spawn(pages()).await.unwrap().unwrap();
                assert!(synced, "seed {seed}");
                lost += u32::from(!unsynced);
                assert_eq!(sim::node(2).spawn(pages()).await.unwrap().unwrap(), [true; 2], "seed {seed}");
                assert_eq!((sim::node(1).counts().power_cuts, sim::node(2).counts().power_cuts), (1, 0));
            })
            .unwrap();
    }
    assert!((5..35).contains(&lost), "{lost} of 40 lost the page that was not synced");
}

#[test]
fn the_power_of_node_0_is_that_of_all() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        let failure = world
            .run(async |_| {
                let ready = Arc::new(Mutex::new(0));
                drop(sim::node(1).spawn(half_durable(ready.clone())));
                while *ready.lock().unwrap() < 1 {
                    sim::sleep(MS).await.unwrap();
                }
                sim::power_cut().await;
            })
            .unwrap_err();
        assert!(failure.is_power_cut());
        assert_eq!(world.counts().power_cuts, 2);
        assert_eq!(world.run(async |_| ()).unwrap_err().kind(), FailureKind::Off);
        world.reboot();
        let found = world.run(async |_| sim::node(1).spawn(pages()).await.unwrap()).unwrap();
        let [synced, unsynced] = found.unwrap();
        assert!(synced, "seed {seed}");
        lost += u32::from(!unsynced);
    }
    assert!(lost > 2, "{lost} of 20 lost the page that was not synced");
}

#[test]
fn operations_in_flight_end_with_their_node() {
    for seed in 0..30 {
        World::new(seed)
            .run(async |_| {
                let node = sim::node(1);
                node.disk(Profile::nand().latency(SECOND, SECOND, SECOND)).unwrap();
                let (send, engine) = futures::channel::oneshot::channel();
                let owner = node.spawn(async move {
                    let engine = start();
                    let file = engine.open("/file", Open::create()).await.unwrap();
                    send.send((engine.clone(), file.clone())).ok().unwrap();
                    // In flight at the power cut, as are those of the other node's program below.
                    let writes =
                        (0..4u64).map(|page| file.write(page * PAGE as u64, vec![1; PAGE]).into_future());
                    futures::future::join_all(writes).await;
                    unreachable!("the disk is slower than that");
                });
                let (engine, file) = engine.await.unwrap();
                let read = sim::spawn_local({
                    let file = file.clone();
                    async move { file.read(0..4096).await.map(drop) }
                });
                let opened = sim::spawn_local({
                    let engine = engine.clone();
                    async move { engine.sync_dir("/").await }
                });
                sim::sleep(20 * MS).await.unwrap();
                let before = sim::world_time();
                node.power_cut().await;
                assert_eq!(owner.await.unwrap_err().kind(), ErrorKind::TaskCancelled);
                read.await.unwrap().unwrap_err();
                opened.await.unwrap().unwrap_err();
                file.read(0..4096).await.unwrap_err();
                engine.metadata("/file").await.unwrap_err();
                assert!(sim::world_time() - before < 100 * MS, "nothing waited for the disk");
                // Its memory is lost, and the same machine starts anew.
                node.power_on();
                let found = node.spawn(async { start().read_dir("/").await.unwrap().len() }).await.unwrap();
                assert!(found <= 1);
                drop((engine, file));
            })
            .unwrap();
    }
}

/// Notes where and when it is dropped, and tries to continue there.
struct Last(Arc<Mutex<Vec<u32>>>, Option<Socket>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(sim::current_node().number());
        if let Some(socket) = self.1.take() {
            socket.send(Address::new(0, 1), "never");
        }
        assert!(Socket::bind(99).is_err());
        let again = sim::spawn_local(async { unreachable!("a node without power runs nothing") });
        drop::<sim::Task<()>>(again);
    }
}

#[test]
fn what_a_node_does_in_its_destructors_at_a_cut_reaches_nobody() {
    let dropped = Arc::<Mutex<Vec<u32>>>::default();
    let mut world = World::new(3);
    world
        .run(async |_| {
            let mut socket = Socket::bind(1).unwrap();
            let mine = dropped.clone();
            drop(sim::node(7).spawn(async move {
                let _last = Last(mine, Some(Socket::bind(5).unwrap()));
                let engine = start();
                let _on_shard = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
                std::future::pending::<()>().await;
            }));
            sim::sleep(MS).await.unwrap();
            sim::node(7).power_cut().await;
            sim::node(7).power_cut().await; // is off already
            assert_eq!(*dropped.lock().unwrap(), [7]);
            let error = sim::timeout(SECOND, socket.recv()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Elapsed);
            let error = sim::node(7).spawn(async {}).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("node 7 has no power"), "{error}");
        })
        .unwrap();
    assert_eq!(world.traffic().sent, 0);
}

#[test]
fn a_cut_at_an_operation_or_at_a_time_of_one_node() {
    World::new(4)
        .run(async |engine| {
            let node = sim::node(1);
            let pages = Arc::new(Mutex::new(0));
            let written = pages.clone();
            node.power_cut_at_operation(5);
            let writer = node.spawn(async move {
                let engine = start();
                let file = engine.open("/file", Open::create()).await.unwrap();
                for page in 0.. {
                    file.write(page * PAGE as u64, vec![1; PAGE]).await.unwrap();
                    *written.lock().unwrap() += 1;
                }
            });
            // Operations of other nodes do not count.
            let file = engine.open("/file", Open::create()).await.unwrap();
            for _ in 0..20 {
                file.write(0, vec![1; PAGE]).await.unwrap();
            }
            writer.await.unwrap_err();
            assert!(!node.is_on());
            assert_eq!(*pages.lock().unwrap(), 4);

            node.power_on();
            node.power_cut_after(50 * MS);
            let began = sim::world_time();
            node.spawn(std::future::pending::<()>()).await.unwrap_err();
            let lived = sim::world_time() - began;
            assert!((50 * MS..51 * MS).contains(&lived), "{lived:?}");
        })
        .unwrap();
}

#[test]
fn a_message_outlives_its_sender_and_finds_the_restarted_receiver() {
    let slow = Conditions::ideal().latency(100 * MS, Duration::ZERO);
    let mut world = World::new(5).network(slow);
    world
        .run(async |_| {
            let receive = async || {
                let mut socket = Socket::bind(1).unwrap();
                socket.recv().await.unwrap().into_bytes()
            };
            drop(sim::node(2).spawn(receive()));
            drop(sim::node(1).spawn(async {
                Socket::bind_unnamed().unwrap().send(Address::new(2, 1), "late");
                sim::power_cut().await;
            }));
            sim::sleep(20 * MS).await.unwrap();
            assert!(!sim::node(1).is_on());
            // Nothing that is sent from here on arrives, but the message is on its way.
            net::cut(1, 2);
            sim::node(2).power_cut().await;
            sim::sleep(20 * MS).await.unwrap();
            sim::node(2).power_on();
            let received = sim::node(2).spawn(receive()).await.unwrap();
            assert_eq!(&received[..], b"late");
            // To a node that is off when it arrives, nothing does.
            Socket::bind_unnamed().unwrap().send(Address::new(2, 1), "lost");
            sim::node(2).power_cut().await;
            sim::sleep(SECOND).await.unwrap();
            assert_eq!((net::traffic().sent, net::traffic().unreachable), (2, 1));
        })
        .unwrap();
}

#[test]
fn a_socket_ends_with_the_node_that_bound_it() {
    World::new(12)
        .run(async |_| {
            let (send, socket) = futures::channel::oneshot::channel();
            let _ = sim::node(1).spawn(async { send.send(Socket::bind(1).unwrap()).unwrap() }).await;
            let mut socket = socket.await.unwrap();
            let receiver = sim::spawn_local(async move { (socket.recv().await.unwrap_err(), socket) });
            sim::sleep(MS).await.unwrap();
            sim::node(1).power_cut().await;
            let (error, socket) = receiver.await.unwrap();
            assert_eq!(error.raw_os_error(), Some(107), "{error}");
            // The next one with this address is another one.
            sim::node(1).power_on();
            let next =
                sim::node(1).spawn(async { Socket::bind(1).unwrap().recv().await.unwrap().into_bytes() });
            sim::sleep(MS).await.unwrap();
            drop(socket);
            Socket::bind_unnamed().unwrap().send(Address::new(1, 1), "next");
            assert_eq!(&next.await.unwrap()[..], b"next");
        })
        .unwrap();
}

/// Returns which of the links between the nodes below 4 carry a message.
async fn links() -> Vec<(u32, u32)> {
    let found = Rc::new(RefCell::new(Vec::new()));
    let mut receivers = Vec::new();
    for to in 0..4u32 {
        let found = found.clone();
        receivers.push(sim::node(to).spawn_local(async move {
            let mut socket = Socket::bind(1).unwrap();
            while let Ok(message) = socket.recv().await {
                found.borrow_mut().push((message.from().node(), to));
            }
        }));
    }
    for from in 0..4u32 {
        drop(sim::node(from).spawn(async {
            sim::sleep(100 * MS).await.unwrap();
            let socket = Socket::bind_unnamed().unwrap();
            (0..4).for_each(|to| socket.send(Address::new(to, 1), "x"));
        }));
    }
    sim::sleep(SECOND).await.unwrap();
    receivers.iter().for_each(sim::Task::abort);
    sim::sleep(MS).await.unwrap();
    let mut found = found.take();
    found.sort_unstable();
    found
}

#[test]
fn links_are_cut_one_way_and_partitions_heal() {
    World::new(6)
        .run(async |_| {
            let all: Vec<(u32, u32)> = (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).collect();
            let without = |cut: &[(u32, u32)]| -> Vec<(u32, u32)> {
                all.iter().copied().filter(|link| !cut.contains(link)).collect()
            };
            assert_eq!(links().await, all);
            net::cut(1, 2);
            assert_eq!(links().await, without(&[(1, 2)]));
            net::heal(1, 2);
            net::partition(&[&[0, 1][..], &[2]]);
            assert_eq!(links().await, without(&[(0, 2), (2, 0), (1, 2), (2, 1)]));
            net::heal_all();
            net::set_link(3, 0, Conditions::ideal().loss_ppm(1_000_000));
            assert_eq!(links().await, without(&[(3, 0)]));
            net::set_link(3, 0, Conditions::ideal());
            net::set_conditions(Conditions::ideal().outages(1_000_000, SECOND));
            let local: Vec<_> = (0..4).map(|node| (node, node)).collect();
            // Own conditions stay; a node reaches itself always.
            let expected: Vec<_> =
                all.iter().copied().filter(|link| local.contains(link) || *link == (3, 0)).collect();
            assert_eq!(links().await, expected);
        })
        .unwrap();
}

#[test]
fn a_bad_network_does_everything_and_counts_it() {
    let mut world = World::new(7).network(Conditions::hostile());
    let received = Rc::new(RefCell::new(Vec::new()));
    world
        .run(async |_| {
            let mine = received.clone();
            drop(sim::node(1).spawn_local(async move {
                let mut socket = Socket::bind(1).unwrap();
                loop {
                    let message = socket.recv().await.unwrap();
                    let (number, sent_ns) = message.bytes().split_at(8);
                    let sent = Duration::from_nanos(u64::from_le_bytes(sent_ns.try_into().unwrap()));
                    let took =
                        sim::world_time().checked_sub(sent).expect("no message arrives before it was sent");
                    assert!(took >= Duration::from_micros(100), "{took:?}");
                    mine.borrow_mut().push(u64::from_le_bytes(number.try_into().unwrap()));
                }
            }));
            let socket = Socket::bind_unnamed().unwrap();
            for number in 0..5_000u64 {
                let mut bytes = number.to_le_bytes().to_vec();
                bytes.extend((sim::world_time().as_nanos() as u64).to_le_bytes());
                socket.send(Address::new(1, 1), bytes);
                sim::sleep(MS).await.unwrap();
            }
            for _ in 0..10 {
                socket.send(Address::new(1, 2), "no such port");
            }
            sim::sleep(5 * SECOND).await.unwrap();
        })
        .unwrap();
    let traffic = world.traffic();
    let received = received.take();
    assert_eq!(traffic.sent, 5_010);
    assert_eq!(traffic.delivered, received.len() as u64);
    let ends = traffic.delivered + traffic.lost + traffic.blocked + traffic.unreachable + traffic.overflowed;
    assert_eq!(ends, traffic.sent + traffic.duplicated, "{traffic:?}");
    for (count, seen) in [
        ("lost", traffic.lost),
        ("blocked", traffic.blocked),
        ("doubled", traffic.duplicated),
        ("overtaken", traffic.overtaken),
        ("unreachable", traffic.unreachable),
        ("outages", traffic.outages),
    ] {
        assert!(seen > 0, "{count} {traffic:?}");
    }
    let mut sorted = received.clone();
    sorted.sort_unstable();
    assert_ne!(received, sorted, "some were overtaken");
    sorted.dedup();
    assert!(sorted.len() < received.len(), "some came twice");
    assert!((3_000..4_990).contains(&sorted.len()), "{} of 5,000 came", sorted.len());
}

#[test]
fn a_full_socket_loses_messages() {
    let mut world = World::new(8);
    world
        .run(async |_| {
            let mut socket = Socket::bind(1).unwrap();
            let sender = Socket::bind_unnamed().unwrap();
            for number in 0..5_000u32 {
                sender.send(socket.address(), number.to_le_bytes().to_vec());
            }
            sim::sleep(SECOND).await.unwrap();
            for number in 0..4_096u32 {
                assert_eq!(socket.recv().await.unwrap().bytes()[..], number.to_le_bytes());
            }
            sim::timeout(SECOND, socket.recv()).await.unwrap_err();
        })
        .unwrap();
    assert_eq!(world.traffic().overflowed, 5_000 - 4_096);
}

#[test]
fn a_dropped_call_costs_its_reply_alone() {
    let mut world = World::new(9);
    world
        .run(async |_| {
            let server = Address::new(1, 1);
            drop(sim::node(1).spawn(async {
                let mut socket = Socket::bind(1).unwrap();
                while let Ok(request) = socket.recv().await {
                    sim::sleep(20 * MS).await.unwrap();
                    let bytes = request.bytes().clone();
                    request.reply(bytes);
                }
            }));
            sim::sleep(MS).await.unwrap();
            for polls in 0..2 {
                assert!(sim::dropped_after(polls, net::call(server, "dropped", SECOND)).await.is_none());
            }
            let error = net::call(server, "too slow", MS).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Elapsed);
            // The replies to those arrive first, and not at this call.
            assert_eq!(&net::call(server, "kept", SECOND).await.unwrap()[..], b"kept");

            let mut socket = Socket::bind(1).unwrap();
            assert!(sim::dropped_after(1, socket.recv()).await.is_none());
            socket.send(socket.address(), "one");
            sim::sleep(MS).await.unwrap();
            assert!(sim::dropped_after(0, socket.recv()).await.is_none());
            assert_eq!(socket.recv().await.unwrap().bytes()[..], b"one"[..]);
            let error = Socket::bind(1).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(98), "{error}");
            drop(socket);
            Socket::bind(1).unwrap();
        })
        .unwrap();
}

#[test]
fn clocks_drift_and_are_put_forward() {
    World::new(10)
        .run(async |_| {
            let fast = sim::node(1);
            fast.advance_clock(1_000 * SECOND);
            fast.set_drift_ppm(250_000);
            let slow = sim::node(2);
            slow.set_drift_ppm(-500_000);
            let lasts = async || {
                let (own, world) = (sim::now(), sim::world_time());
                sim::sleep(SECOND).await.unwrap();
                let engine = start();
                let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, async || {
                    shard::sleep(SECOND).await.unwrap();
                });
                on_shard.await.unwrap();
                sim::timeout(SECOND, std::future::pending::<()>()).await.unwrap_err();
                let mut ticks = sim::interval(SECOND / 2);
                ticks.tick().await.unwrap();
                ticks.tick().await.unwrap();
                (sim::now() - own, sim::world_time() - world)
            };
            for (node, world_ms) in [(sim::node(0), 4_000), (fast, 3_200), (slow, 8_000)] {
                let (own, world) = node.spawn(lasts()).await.unwrap();
                assert!((4 * SECOND..4 * SECOND + 20 * MS).contains(&own), "{node:?} {own:?}");
                let expected = Duration::from_millis(world_ms);
                assert!((expected..expected + 40 * MS).contains(&world), "{node:?} {world:?}");
            }
            assert!(fast.now() > 1_000 * SECOND && slow.now() < sim::now());

            // A sleep on a shard, one outside, and a clock that is put forward over both.
            let sleeper = slow.spawn(async {
                let engine = start();
                let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, async || {
                    shard::sleep(1_000 * SECOND).await.unwrap();
                });
                sim::sleep(1_000 * SECOND).await.unwrap();
                on_shard.await.unwrap();
            });
            sim::sleep(SECOND).await.unwrap();
            let before = sim::world_time();
            slow.advance_clock(1_000 * SECOND);
            sleeper.await.unwrap();
            assert!(sim::world_time() - before < 40 * MS);
        })
        .unwrap();
}

#[test]
fn a_failure_of_a_cluster_shrinks() {
    // Fails when one message overtakes another.
    let attempt = |world: &mut World| {
        world.add_disk(Profile::nand().lost(Loss::Prefix));
        let overtaken = world
            .run(async |_| {
                net::set_conditions(Conditions::lan());
                let mut socket = Socket::bind(1).unwrap();
                let to = socket.address();
                for number in 0..20u8 {
                    drop(
                        sim::node(1)
                            .spawn(async move { Socket::bind_unnamed().unwrap().send(to, vec![number]) }),
                    );
                }
                for _ in 0..20 {
                    socket.recv().await.unwrap();
                }
                net::traffic().overtaken
            })
            .map_err(|failure| failure.to_string())?;
        if overtaken > 0 { Err(format!("{overtaken} overtaken")) } else { Ok(()) }
    };
    let shrunk = sim::shrink(1, 300, attempt).expect("seed 1 fails");
    assert!(shrunk.schedule.len() < shrunk.choices_before, "{shrunk}");
    assert_eq!(attempt(&mut World::replay(1, &shrunk.schedule)).unwrap_err(), shrunk.why);
}

#[test]
fn outside_of_a_world_there_are_no_nodes() {
    let node = sim::node(1);
    assert!(!node.is_on());
    assert_eq!(node.now(), Duration::ZERO);
    assert_eq!(node.disk(Profile::nand()).unwrap_err().kind(), ErrorKind::OutsideWorld);
    assert_eq!(Socket::bind(1).unwrap_err().kind(), ErrorKind::OutsideWorld);
    assert_eq!(net::traffic(), net::Traffic::default());
    node.power_on();
    node.set_drift_ppm(1);
    net::cut(0, 1);
    // A socket that outlives its run is closed.
    let mut world = World::new(11);
    let mut socket = world.run(async |_| Socket::bind(1).unwrap()).unwrap();
    let closed = world.run(async |_| socket.recv().await.unwrap_err().raw_os_error()).unwrap();
    assert_eq!(closed, Some(107));
    world.run(async |_| drop((Socket::bind(1).unwrap(), socket))).unwrap();
}

/// The tests above fail when the simulator is broken like this.
#[cfg(feature = "_mutants")]
#[test]
fn each_mutant_is_caught() {
    use forebay::mutants::{self, Mutant};
    let cases: [(Mutant, fn()); 5] = [
        (Mutant::CutReachesOthers, a_cut_node_loses_what_was_not_synced_and_the_others_lose_nothing),
        (Mutant::SocketsOutliveCut, a_socket_ends_with_the_node_that_bound_it),
        (Mutant::CutLinkCarries, links_are_cut_one_way_and_partitions_heal),
        (Mutant::DriftIgnored, clocks_drift_and_are_put_forward),
        (Mutant::ArrivesAtOnce, a_bad_network_does_everything_and_counts_it),
    ];
    for (mutant, test) in cases {
        let broken = std::panic::catch_unwind(|| mutants::with(mutant, test));
        assert!(broken.is_err(), "{mutant:?} survives");
        test();
    }
}
