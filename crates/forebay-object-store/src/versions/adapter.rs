//! `ObjectStore` of one version of object_store, which the module above names `os`: this file is a module of each.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::os::path::Path;
use super::os::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result, UploadPart,
};
use super::{get_result, list_result, put_result};
use crate::attributes::Attributes;
use crate::failure::Failure;
use crate::list::ListEntry;
use crate::store::ForebayStore;
use crate::write::Upload;

/// The name of this store in errors.
const NAME: &str = "ForebayStore";
/// Deletions of one stream at a time.
const DELETIONS: usize = 10;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for ForebayStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if !opts.attributes.is_empty() {
            return Err(not_implemented("`put_opts` with attributes"));
        }
        let creates = match opts.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return Err(not_implemented("`put_opts` with mode `PutMode::Update`")),
        };
        let e_tag = self.put(location.as_ref(), payload.into_iter().collect(), creates)?.await?;
        Ok(put_result(e_tag))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return Err(not_implemented("`put_multipart_opts` with attributes"));
        }
        Ok(Box::new(Multipart(self.begin_upload(location.as_ref())?.await?)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            let meta = meta(location.clone(), self.head(location.as_ref()).await?);
            options.check_preconditions(&meta)?;
            let range = range(&options, meta.size)?;
            return Ok(get_result(GetResultPayload::Stream(stream::empty().boxed()), meta, range));
        }
        let object = self.open_object(location.as_ref()).await?;
        let meta = meta(location.clone(), object.attributes.clone());
        options.check_preconditions(&meta)?;
        let range = range(&options, meta.size)?;
        let chunks = self.stream(object, range.clone(), options.range.is_none()).map_err(Error::from).boxed();
        // Never a file: those who are given one read it in their own way.
        Ok(get_result(GetResultPayload::Stream(chunks), meta, range))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read_ranges(location.as_ref(), ranges).await?)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deleted = locations.map(move |location| {
            let store = store.clone();
            async move {
                let location = location?;
                store.delete(location.as_ref())?.await?;
                Ok(location)
            }
        });
        deleted.buffered(DELETIONS).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listed(self, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        listed(self, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let level = self.list_level(prefix.map_or("", Path::as_ref)).await?;
        let mut common_prefixes = level.directories.iter().map(parsed).collect::<Result<Vec<_>>>()?;
        common_prefixes.sort_unstable();
        Ok(list_result(common_prefixes, level.objects.into_iter().map(of_entry).collect::<Result<_>>()?))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let creates = match options.mode {
            CopyMode::Overwrite => false,
            CopyMode::Create => true,
        };
        Ok(self.copy(from.as_ref(), to.as_ref(), creates)?.await?)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let creates = match options.target_mode {
            RenameTargetMode::Overwrite => false,
            RenameTargetMode::Create => true,
        };
        Ok(self.rename(from.as_ref(), to.as_ref(), creates)?.await?)
    }
}

/// An upload in parts.
struct Multipart(Upload);

#[async_trait]
impl MultipartUpload for Multipart {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.0.put_part(data.into_iter().collect());
        Box::pin(async move { Ok(part.await?) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        Ok(put_result(self.0.complete().await?))
    }

    async fn abort(&mut self) -> Result<()> {
        Ok(self.0.abort().await?)
    }
}

impl fmt::Debug for Multipart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multipart").field("path", &self.0.path()).finish_non_exhaustive()
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotFound { path, source } => Error::NotFound { path, source },
            Failure::AlreadyExists { path, source } => Error::AlreadyExists { path, source },
            Failure::Generic(source) => Error::Generic { store: NAME, source },
        }
    }
}

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.to_string(), implementer: NAME.to_string() }
}

fn listed(
    store: &ForebayStore,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let offset = offset.map(|offset| offset.as_ref().to_string());
    let listed = store.list_all(prefix.map_or("", Path::as_ref), offset);
    listed.map_err(Error::from).and_then(async |entry| of_entry(entry)).boxed()
}

fn of_entry(entry: ListEntry) -> Result<ObjectMeta> {
    Ok(meta(parsed(&entry.location)?, entry.attributes))
}

fn parsed(location: &String) -> Result<Path> {
    Ok(Path::parse(location)?)
}

fn meta(location: Path, attributes: Attributes) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: attributes.modified.into(),
        size: attributes.size_bytes,
        e_tag: Some(attributes.e_tag),
        version: None,
    }
}

fn range(options: &GetOptions, size_bytes: u64) -> Result<Range<u64>> {
    match &options.range {
        Some(range) => range
            .as_range(size_bytes)
            .map_err(|source| Error::Generic { store: NAME, source: Box::new(source) }),
        None => Ok(0..size_bytes),
    }
}
