//! `ObjectStore` of one version of object_store, which the module above names `os`: this file is a module of each.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::os::path::Path;
use super::os::{
    self, Attribute, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result, UploadPart,
};
use super::{get_result, list_result, put_result};
use crate::attributes::{Attributes, ProgramAttributes};
use crate::failure::{Failure, Sentence};
use crate::list::ListEntry;
use crate::store::ForebayStore;
use crate::write::{Condition, Upload};

/// The name of this store in errors.
const NAME: &str = "ForebayStore";
/// The prefix of the names of attributes with the program's own keys.
const METADATA: &str = "metadata.";
/// Deletions of one stream at a time.
const DELETIONS: usize = 10;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for ForebayStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let condition = match opts.mode {
            PutMode::Overwrite => Condition::None,
            PutMode::Create => Condition::Absent,
            PutMode::Update(version) => Condition::Tag(version.e_tag.ok_or_else(without_tag)?),
        };
        let attributes = named(&opts.attributes)?;
        let chunks = payload.into_iter().collect();
        let e_tag = self.put(location.as_ref(), chunks, condition, attributes)?.await?;
        Ok(put_result(e_tag))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let attributes = named(&opts.attributes)?;
        Ok(Box::new(Multipart(self.begin_upload(location.as_ref(), attributes)?.await?)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            let (attributes, own) = self.head(location.as_ref()).await?;
            let meta = meta(location.clone(), attributes);
            options.check_preconditions(&meta)?;
            let range = range(&options, meta.size)?;
            let payload = GetResultPayload::Stream(stream::empty().boxed());
            return Ok(get_result(payload, meta, range, of_names(own)));
        }
        let (at, asked) = (location.clone(), options.clone());
        // Nothing is read for a condition that fails.
        let wanted = move |found: &Attributes| {
            let meta = meta(at, found.clone());
            asked.check_preconditions(&meta).ok()?;
            Some((range(&asked, meta.size).ok()?, asked.range.is_none()))
        };
        let object = self.open_object(location.as_ref(), wanted).await?;
        let meta = meta(location.clone(), object.attributes.clone());
        options.check_preconditions(&meta)?;
        let range = range(&options, meta.size)?;
        let own = of_names(object.program_attributes().await?);
        let chunks = self.stream(object, range.clone(), options.range.is_none()).map_err(Error::from).boxed();
        // Never a file: those who are given one read it in their own way.
        Ok(get_result(GetResultPayload::Stream(chunks), meta, range, own))
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
            Failure::Precondition { path, source } => Error::Precondition { path, source },
            Failure::Locked(text) => Error::Generic { store: NAME, source: Box::new(Sentence(text)) },
            Failure::Generic(source) => Error::Generic { store: NAME, source },
        }
    }
}

fn without_tag() -> Error {
    Failure::text("an update without an entity tag would replace anything; give it the tag that the object had when it was read").into()
}

/// Returns the names and values by which files keep attributes.
fn named(attributes: &os::Attributes) -> Result<ProgramAttributes> {
    let named = attributes.iter().map(|(attribute, value)| {
        let name = match attribute {
            Attribute::ContentDisposition => "content-disposition".to_string(),
            Attribute::ContentEncoding => "content-encoding".to_string(),
            Attribute::ContentLanguage => "content-language".to_string(),
            Attribute::ContentType => "content-type".to_string(),
            Attribute::CacheControl => "cache-control".to_string(),
            Attribute::StorageClass => "storage-class".to_string(),
            Attribute::Metadata(key) => format!("{METADATA}{key}"),
            other => {
                let operation = format!("a put with the attribute {other:?}");
                return Err(Error::NotImplemented { operation, implementer: NAME.to_string() });
            }
        };
        Ok((name, value.to_string()))
    });
    // In one order, independent of the hash map's order.
    let mut named = named.collect::<Result<ProgramAttributes>>()?;
    named.sort_unstable();
    Ok(named)
}

/// Returns the attributes of these names. One of another version of object_store is left out.
fn of_names(named: ProgramAttributes) -> os::Attributes {
    let known = named.into_iter().filter_map(|(name, value)| {
        let attribute = match name.as_str() {
            "content-disposition" => Attribute::ContentDisposition,
            "content-encoding" => Attribute::ContentEncoding,
            "content-language" => Attribute::ContentLanguage,
            "content-type" => Attribute::ContentType,
            "cache-control" => Attribute::CacheControl,
            "storage-class" => Attribute::StorageClass,
            other => Attribute::Metadata(other.strip_prefix(METADATA)?.to_string().into()),
        };
        Some((attribute, value))
    });
    known.collect()
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
