//! Shows: the store keeps the contract of object_store. How: the functions of object_store's feature `integration` that it runs on its own
//! stores, for both versions of the trait, on every way to the kernel, with each read mode and durability.

use std::sync::Arc;

use crate::common::{self, configs, dir};
use forebay::{Config, Durability, Engine, Mode};
use forebay_object_store::ForebayStore;

/// Runs every function that applies to a store of local files.
macro_rules! suite {
    ($name:ident, $version:ident) => {
        async fn $name(store: Arc<ForebayStore>) {
            use $version::integration as suite;
            use $version::path::Path;

            suite::put_get_delete_list(&store).await;
            suite::list_with_offset_exclusivity(&store).await;
            suite::get_opts(&*store).await;
            suite::list_uses_directories_correctly(&store).await;
            suite::list_with_delimiter(&store).await;
            suite::rename_and_copy(&store).await;
            suite::copy_if_not_exists(&store).await;
            suite::copy_rename_nonexistent_object(&store).await;
            suite::stream_get(&store).await;
            // These leave objects behind.
            suite::put_opts(&*store, true).await;
            suite::put_get_attributes(&*store).await;
            suite::multipart_race_condition(&*store, true).await;
            suite::multipart_out_of_order(&*store).await;
            let missing = Some(Path::from("none"));
            let error = suite::get_nonexistent_object(&store, missing).await.unwrap_err();
            assert!(matches!(error, $version::Error::NotFound { .. }), "{error:?}");
        }
    };
}

suite!(v14, object_store);
#[cfg(feature = "object_store_013")]
suite!(v13, object_store_013);

fn on_each_way(mode: Mode, durability: Durability) {
    for (name, config) in configs() {
        println!("{name}");
        on(config, mode, durability);
    }
}

fn on(config: Config, mode: Mode, durability: Durability) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let engine = Engine::start(config).unwrap();
        let dirs = [dir(), dir()];
        let store = async |number: usize| {
            let settings = ForebayStore::builder(&engine, dirs[number].path());
            Arc::new(settings.read_mode(mode).put_durability(durability).open().await.unwrap())
        };
        v14(store(0).await).await;
        #[cfg(feature = "object_store_013")]
        v13(store(1).await).await;
    });
}

/// The way that an engine chooses without a setting.
#[test]
fn automatic() {
    on(Config::new(), Mode::Adaptive, Durability::None);
}

#[test]
fn adaptive_and_durable() {
    on_each_way(Mode::Adaptive, Durability::Data);
}

#[test]
fn direct() {
    on_each_way(Mode::Direct, Durability::None);
}

#[test]
fn buffered() {
    on_each_way(Mode::Buffered, Durability::None);
}

/// No runtime at all: the executor of a plain thread.
#[test]
fn without_a_runtime() {
    use object_store::integration as suite;
    use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};

    let (engine, dir) = (common::engine(), dir());
    let store = ForebayStore::builder(&engine, dir.path()).open().wait().unwrap();
    futures::executor::block_on(async {
        let shared = Arc::new(store.clone());
        suite::put_get_delete_list(&shared).await;
        suite::list_uses_directories_correctly(&shared).await;
        suite::list_with_delimiter(&shared).await;
        // `stream_get` needs a runtime for its own tasks.
        let location = object_store::path::Path::from("by/parts");
        let mut upload: Box<dyn MultipartUpload> =
            store.put_multipart_opts(&location, Default::default()).await.unwrap();
        upload.put_part("123".into()).await.unwrap();
        upload.put_part("45678".into()).await.unwrap();
        let put = upload.complete().await.unwrap();
        let got = store.get(&location).await.unwrap();
        assert_eq!(got.meta.e_tag, put.e_tag);
        assert_eq!(got.bytes().await.unwrap(), "12345678");
    });
}
