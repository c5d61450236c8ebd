//! Shows: a call that is no longer polled does not hold up others. How: calls of each kind are kept unpolled after each of their
//! polls while one call of each kind completes, on a real engine and in simulated worlds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::common::{self, bytes_of, dir};
use forebay::{Config, Engine, Mode};
use forebay_object_store::ForebayStore;
use forebay_sim::{Profile, World};
use forebay_test::frozen::{self, NamedCall, Scene};
use forebay_test::worlds;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

#[derive(Clone)]
struct Store {
    store: ForebayStore,
    number: Arc<AtomicU64>,
    content: Arc<RwLock<Vec<u8>>>,
}

const LEN: u64 = 300_000;

impl Store {
    async fn new(engine: &Engine, root: &std::path::Path, mode: Mode) -> Result<Store, String> {
        let settings = ForebayStore::builder(engine, root).read_mode(mode).open_files_max(2);
        let store = settings.open().await.map_err(|error| error.to_string())?;
        let content = bytes_of(0..LEN);
        for name in ["a", "d/b", "d/e/c"] {
            let put = store.put(&Path::from(name), content.clone().into()).await;
            put.map_err(|error| error.to_string())?;
        }
        Ok(Store { store, number: Arc::default(), content: Arc::new(RwLock::new(content)) })
    }
}

impl Scene for Store {
    fn calls(&self) -> Vec<NamedCall> {
        let mut calls: Vec<NamedCall> = Vec::new();
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner).clone();
        let at = move |name: &str| Path::from(format!("own/{number}/{name}"));
        macro_rules! call {
            ($name:literal, $($held:ident),* => $body:block) => {{
                let store = self.store.clone();
                $(let $held = $held.clone();)*
                calls.push(($name, Box::pin(async move {
                    let body = async { $body Ok::<_, object_store::Error>(()) };
                    let _ = &store;
                    body.await.map_err(|error| error.to_string())
                })));
            }};
        }
        let store = &self.store;
        call!("get_ranges", store, content => {
            for name in ["a", "d/b", "d/e/c"] {
                let parts = store.get_ranges(&Path::from(name), &[5..100_000, 7..8, 299_000..LEN]).await?;
                assert!(parts[0] == content[5..100_000] && parts[1] == content[7..8]);
            }
        });
        call!("get", store, content => {
            let got = store.get(&Path::from("a")).await?;
            assert!(got.bytes().await? == content);
        });
        call!("put", store, content => {
            let (one, two) = (at("put"), at("parts"));
            store.put(&one, content.clone().into()).await?;
            let mut upload = store.put_multipart(&two).await?;
            upload.put_part(content[..9_000].to_vec().into()).await?;
            upload.put_part(content[9_000..].to_vec().into()).await?;
            upload.complete().await?;
            let version = UpdateVersion { e_tag: store.head(&one).await?.e_tag, version: None };
            store.put_opts(&one, content.clone().into(), PutMode::Update(version).into()).await?;
            for location in [one, two] {
                assert!(store.get(&location).await?.bytes().await? == content);
            }
        });
        call!("names", store => {
            store.copy(&Path::from("a"), &at("copied")).await?;
            store.rename(&at("copied"), &at("moved")).await?;
            store.delete(&at("moved")).await?;
        });
        call!("lists", store => {
            let listed: Vec<_> = store.list(Some(&Path::from("d"))).try_collect().await?;
            assert_eq!(listed.len(), 2);
            let level = store.list_with_delimiter(Some(&Path::from("d"))).await?;
            assert_eq!((level.common_prefixes.len(), level.objects.len()), (1, 1));
        });
        call!("stream", store => {
            let mut stream = store.get(&Path::from("d/b")).await?.into_stream();
            while let Some(chunk) = stream.next().await {
                chunk?;
            }
        });
        calls
    }

    fn many(&self, name: &str) -> usize {
        // More than files stay open.
        if name == "put" { 5 } else { 10 }
    }
}

fn on(config: Config) {
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let store = Store::new(&engine, dir.path(), Mode::Adaptive);
    let store = futures::executor::block_on(store).unwrap();
    frozen::rounds_of_each(&store);
    for kind in 0..store.calls().len() {
        frozen::round_of_many(&store, kind, 2 + kind % 3, kind % 2 == 0);
    }
}

#[test]
fn on_each_way_to_the_kernel() {
    for (name, config) in common::configs() {
        println!("{name}");
        on(config);
    }
}

fn in_world(world: &mut World) -> Result<(), String> {
    let seed = world.seed();
    world.add_disk(Profile::nand().at("/disk"));
    let ran = world.run(async move |engine: Engine| {
        let store = async {
            engine.create_dir_all("/disk/store").await.map_err(|error| error.to_string())?;
            Store::new(&engine, "/disk/store".as_ref(), Mode::Direct).await
        };
        frozen::in_world(store, seed, 2).await
    });
    ran.map_err(|failure| failure.to_string())?
}

#[test]
fn in_worlds() {
    worlds::explore(12, in_world);
}
