// SPDX-License-Identifier: Apache-2.0
//! The one bucket: reads, writes, deletes and listings over the folder. Multipart uploads are next door in `uploads`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use penstock_types::unix_now;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::condition::{Reading, check_write, modified};
use crate::facts::{Checksum as StoredChecksum, Fact, Stamp};
use crate::folder::{Folder, Found};
use crate::incoming::{Promise, hasher, internal, io_error, receive, stored_headers, value_of};
use crate::list::{Item, Query, page};
use crate::outgoing::{Buffers, CHUNK, Outgoing};
use crate::uploads::Uploads;

/// The region that the endpoint says it is in; any is accepted in signatures.
pub(crate) const REGION: &str = "us-east-1";

/// S3 gives no longer page.
const MOST_KEYS: i32 = 1000;

/// What `encoding-type=url` leaves as it is. Space becomes `%20`, which every client's decoder reads; `+` becomes `%2B`.
const KEY_CHARACTERS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// See the module.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) name: Arc<str>,
    pub(crate) folder: Arc<Folder>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) buffers: Buffers,
    pub(crate) began: Stamp,
}

/// Runs a blocking look at the folder.
pub(crate) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> S3Result<T>
where
    T: Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(move || work().map_err(Into::into));
    done.await.map_err(internal)?.map_err(|Failure(error)| error)
}

/// Either kind of error, as S3 tells it.
pub(crate) struct Failure(pub(crate) S3Error);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(io_error(error))
    }
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Self {
        Self(error)
    }
}

fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

fn encoded(text: String, encoding: Option<&EncodingType>) -> String {
    match encoding {
        Some(kind) if kind.as_str() == EncodingType::URL => utf8_percent_encode(&text, KEY_CHARACTERS).to_string(),
        _ => text,
    }
}

fn put_header(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}

/// Headers that stand with an object: those sent with it, and its checksum where it was asked for.
fn object_headers(fact: Option<&Fact>, checksum: Option<&StoredChecksum>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    put_header(&mut headers, "content-type", "binary/octet-stream");
    for (name, value) in fact.into_iter().flat_map(|fact| &fact.headers) {
        put_header(&mut headers, name, value);
    }
    if let Some(checksum) = checksum {
        put_header(&mut headers, &format!("x-amz-checksum-{}", checksum.algorithm.to_lowercase()), &checksum.value);
        put_header(&mut headers, "x-amz-checksum-type", if checksum.composite { "COMPOSITE" } else { "FULL_OBJECT" });
    }
    headers
}

fn metadata_of(fact: Option<&Fact>) -> Option<Metadata> {
    let pairs = &fact?.metadata;
    (!pairs.is_empty()).then(|| pairs.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The answer to GET and HEAD, but for the body.
struct Described {
    found: Found,
    checksum: Option<StoredChecksum>,
    range: std::ops::Range<u64>,
    is_partial: bool,
    /// Of a multipart upload, where one of its parts was asked for.
    parts_count: Option<i32>,
}

/// The bytes of a part by its number, and how many parts there are; an object that came at once is its own first part.
fn part_of(found: &Found, number: i32) -> S3Result<(std::ops::Range<u64>, Option<i32>)> {
    let parts = found.fact.as_ref().map(|fact| fact.parts.as_slice()).unwrap_or_default();
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let part = match (parts, at) {
        ([], Some(0)) => Some(0..found.stamp.size),
        (parts, Some(at)) if at < parts.len() => {
            let start = parts[..at].iter().sum();
            Some(start..start + parts[at])
        }
        _ => None,
    };
    let count = (!parts.is_empty()).then_some(parts.len() as i32);
    part.map(|part| (part, count)).ok_or_else(|| {
        let code = S3ErrorCode::Custom("InvalidPartNumber".into());
        let mut error = S3Error::with_message(code, "The requested partnumber is not satisfiable");
        error.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
        error
    })
}

impl Bucket {
    pub(crate) fn check_name(&self, name: &str) -> S3Result<()> {
        if *name == *self.name {
            return Ok(());
        }
        Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    /// A fact of an object that is being written.
    pub(crate) fn fact(etag: String, checksum: Option<StoredChecksum>, kept: Kept) -> Fact {
        let stamp = Stamp { inode: 0, modified_ns: 0, size: 0 }; // set when it gets its name
        let (headers, metadata) = (kept.headers, kept.metadata);
        Fact { stamp, etag: Some(etag), checksum, parts: Vec::new(), headers, metadata, side: false }
    }

    async fn describe(
        &self,
        key: String,
        range: Option<Range>,
        part_number: Option<i32>,
        reading: Reading,
        wants_sum: bool,
    ) -> S3Result<Described> {
        if range.is_some() && part_number.is_some() {
            return Err(s3_error!(InvalidRequest, "Cannot specify both Range header and partNumber query parameter"));
        }
        let (folder, is_ranged) = (self.folder.clone(), range.is_some());
        blocking(move || {
            let Some(found) = folder.find(&key)? else { return Err(Failure(no_such_key())) };
            reading.check(&found)?;
            let size = found.stamp.size;
            let (range, parts_count) = match (range, part_number) {
                (None, None) => (0..size, None),
                (None, Some(number)) => part_of(&found, number)?,
                (Some(range), _) => {
                    let refused = |_| Failure(s3_error!(InvalidRange, "The requested range is not satisfiable"));
                    (range.check(size).map_err(refused)?, None)
                }
            };
            let is_partial = is_ranged || (part_number.is_some() && size > 0);
            // S3 gives an object's checksum with the whole object only.
            let checksum = if wants_sum && !is_partial { Some(checksum_of(&folder, &key, &found)?) } else { None };
            Ok::<_, Failure>(Described { found, checksum, range, is_partial, parts_count })
        })
        .await
    }

    async fn list(&self, query: Query) -> S3Result<(Vec<Item>, bool)> {
        let folder = self.folder.clone();
        blocking(move || page(&folder, &query)).await
    }
}

/// Headers and metadata that are kept with an object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    pub headers: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, String>,
}

impl Kept {
    pub(crate) fn of(headers: &HeaderMap, metadata: Option<Metadata>) -> Self {
        Self { headers: stored_headers(headers), metadata: metadata.into_iter().flatten().collect() }
    }
}

/// The checksum that came with an object, or its CRC32C, computed once per state of the file.
fn checksum_of(folder: &Folder, key: &str, found: &Found) -> io::Result<StoredChecksum> {
    if let Some(known) = found.fact.as_ref().and_then(|fact| fact.checksum.clone()) {
        return Ok(known);
    }
    let mut sums = hasher("CRC32C");
    let (mut buffer, mut at) = (vec![0; CHUNK], 0);
    while at < found.stamp.size {
        let got = std::os::unix::fs::FileExt::read_at(&found.file, &mut buffer, at)?;
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
        }
        sums.update(&buffer[..got]);
        at += got as u64;
    }
    let value = value_of(sums).ok_or_else(|| io::Error::other("no CRC32C was computed"))?;
    let checksum = StoredChecksum { algorithm: "CRC32C".to_owned(), value, composite: false };
    let mut fact = found.fact.as_deref().cloned().unwrap_or(Fact {
        stamp: found.stamp,
        etag: None,
        checksum: None,
        parts: Vec::new(),
        headers: BTreeMap::new(),
        metadata: BTreeMap::new(),
        side: false,
    });
    fact.checksum = Some(checksum.clone());
    folder.facts.put(key, Some(fact), false)?;
    Ok(checksum)
}

fn is_enabled(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

/// How many keys a page may hold.
fn most(asked: Option<i32>) -> S3Result<i32> {
    match asked.unwrap_or(MOST_KEYS) {
        asked if asked < 0 => Err(s3_error!(InvalidArgument, "max-keys must not be negative")),
        asked => Ok(asked.min(MOST_KEYS)),
    }
}

/// Objects and common prefixes of a page, as S3 writes them.
fn sorted_out(items: Vec<Item>, encoding: Option<&EncodingType>) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Object { key, stamp, etag } => objects.push(Object {
                key: Some(encoded(key, encoding)),
                size: Some(stamp.size as i64),
                e_tag: Some(ETag::Strong(etag)),
                last_modified: Some(modified(stamp)),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                ..Object::default()
            }),
            Item::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(encoded(prefix, encoding)) }),
        }
    }
    (objects, prefixes)
}

/// A continuation token: what was given last, and whether it was a common prefix.
fn token_of(item: &Item) -> String {
    let kind = if matches!(item, Item::Prefix(_)) { 'p' } else { 'k' };
    URL_SAFE_NO_PAD.encode(format!("{kind}{}", item.name()))
}

fn read_token(token: &str) -> S3Result<(bool, String)> {
    let bad = || s3_error!(InvalidArgument, "The continuation token provided is incorrect");
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(bad)?;
    let is_prefix = match text.as_bytes().first() {
        Some(b'p') => true,
        Some(b'k') => false,
        _ => return Err(bad()),
    };
    Ok((is_prefix, text[1..].to_owned()))
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn list_buckets(&self, _req: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let name = Some(self.name.to_string());
        let bucket = Bucket_ { name, creation_date: Some(modified(self.began)), ..Default::default() };
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(vec![bucket]), ..Default::default() }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.check_name(&req.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(REGION.to_owned()), ..Default::default() }))
    }

    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        if *req.input.bucket == *self.name {
            return Err(s3_error!(BucketAlreadyOwnedByYou, "Your previous request to create the bucket succeeded"));
        }
        Err(s3_error!(AccessDenied, "This endpoint serves one folder as one bucket"))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.check_name(&req.input.bucket)?;
        // us-east-1 is told by an empty answer.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.check_name(&req.input.bucket)?;
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let reading = Reading {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let wants_sum = is_enabled(input.checksum_mode.as_ref());
        let Described { found, checksum, range, is_partial, parts_count } =
            self.describe(input.key, input.range, input.part_number, reading, wants_sum).await?;
        let fact = found.fact.as_deref();
        let length = range.end - range.start;
        let output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(length as i64),
            content_range: is_partial
                .then(|| format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), found.stamp.size)),
            e_tag: Some(ETag::Strong(found.etag.clone())),
            last_modified: Some(modified(found.stamp)),
            metadata: metadata_of(fact),
            parts_count,
            ..Default::default()
        };
        let mut headers = object_headers(fact, checksum.as_ref());
        for (name, value) in [
            ("content-type", input.response_content_type),
            ("content-encoding", input.response_content_encoding),
            ("content-disposition", input.response_content_disposition),
            ("cache-control", input.response_cache_control),
        ] {
            if let Some(value) = value {
                put_header(&mut headers, name, &value);
            }
        }
        let body = StreamingBlob::new(Outgoing::new(found.file, range, self.buffers.clone()));
        Ok(S3Response::with_headers(GetObjectOutput { body: Some(body), ..output }, headers))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let reading = Reading {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let wants_sum = is_enabled(input.checksum_mode.as_ref());
        let Described { found, checksum, range, is_partial, parts_count } =
            self.describe(input.key, input.range, input.part_number, reading, wants_sum).await?;
        let fact = found.fact.as_deref();
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some((range.end - range.start) as i64),
            e_tag: Some(ETag::Strong(found.etag.clone())),
            last_modified: Some(modified(found.stamp)),
            metadata: metadata_of(fact),
            parts_count,
            ..Default::default()
        };
        let mut response = S3Response::with_headers(output, object_headers(fact, checksum.as_ref()));
        if is_partial {
            let text = format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), found.stamp.size);
            put_header(&mut response.headers, "content-range", &text);
            response.status = Some(http::StatusCode::PARTIAL_CONTENT);
        }
        Ok(response)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.check_name(&req.input.bucket)?;
        let promise = Promise::of(&req.headers);
        let kept = Kept::of(&req.headers, req.input.metadata);
        let received = receive(self.folder.clone(), req.input.body, promise, req.trailing_headers).await?;
        let fact = Self::fact(received.etag.clone(), received.checksum.clone(), kept);
        let (folder, key, temp) = (self.folder.clone(), req.input.key, received.temp);
        let (if_match, if_none_match) = (req.input.if_match, req.input.if_none_match);
        blocking(move || {
            folder.commit::<Failure>(&key, temp, fact, |there| {
                Ok(check_write(if_match.as_ref(), if_none_match.as_ref(), there)?)
            })
        })
        .await?;
        let output = PutObjectOutput { e_tag: Some(ETag::Strong(received.etag)), ..Default::default() };
        let mut response = S3Response::new(output);
        if let Some(checksum) = received.checksum {
            response.headers = object_headers(None, Some(&checksum));
            response.headers.remove(http::header::CONTENT_TYPE);
        }
        Ok(response)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let CopySource::Bucket { bucket, key: source, .. } = input.copy_source else {
            return Err(s3_error!(NotImplemented, "only objects of this bucket can be copied"));
        };
        self.check_name(&bucket)?;
        let replaces = input.metadata_directive.is_some_and(|how| how.as_str() == MetadataDirective::REPLACE);
        let kept = replaces.then(|| Kept::of(&req.headers, input.metadata));
        let reading = Reading {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            ..Reading::default()
        };
        let (folder, key) = (self.folder.clone(), input.key);
        let (etag, stamp) = blocking(move || {
            let Some(found) = folder.find(&source)? else { return Err(Failure(no_such_key())) };
            reading.check(&found).map_err(|_| s3_error!(PreconditionFailed))?;
            let mut temp = folder.temp()?;
            let (etag, stamp) = crate::uploads::copy_hashed(&mut &found.file, &mut temp.file, found.stamp)?;
            let old = found.fact.as_deref();
            let kept = kept.unwrap_or_else(|| Kept {
                headers: old.map(|fact| fact.headers.clone()).unwrap_or_default(),
                metadata: old.map(|fact| fact.metadata.clone()).unwrap_or_default(),
            });
            let checksum = old.and_then(|fact| fact.checksum.clone()).filter(|checksum| !checksum.composite);
            folder.commit::<Failure>(&key, temp, Self::fact(etag.clone(), checksum, kept), |_| Ok(()))?;
            Ok((etag, stamp))
        })
        .await?;
        let copied = CopyObjectResult {
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(modified(stamp)),
            ..Default::default()
        };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(copied), ..Default::default() }))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.check_name(&req.input.bucket)?;
        let (folder, key) = (self.folder.clone(), req.input.key);
        blocking(move || folder.remove(&key)).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.check_name(&req.input.bucket)?;
        let delete = req.input.delete;
        if delete.objects.len() > 1000 {
            return Err(s3_error!(MalformedXML, "at most 1000 keys can be deleted in one request"));
        }
        let folder = self.folder.clone();
        let quiet = delete.quiet.unwrap_or(false);
        let output = blocking(move || {
            let (mut deleted, mut errors) = (Vec::new(), Vec::new());
            for object in delete.objects {
                match folder.remove(&object.key) {
                    Ok(()) if quiet => {}
                    Ok(()) => deleted.push(DeletedObject { key: Some(object.key), ..Default::default() }),
                    Err(error) => errors.push(Error {
                        code: Some(S3ErrorCode::InternalError.as_str().to_owned()),
                        message: Some(error.to_string()),
                        key: Some(object.key),
                        ..Default::default()
                    }),
                }
            }
            Ok::<_, io::Error>(DeleteObjectsOutput {
                deleted: Some(deleted),
                errors: (!errors.is_empty()).then_some(errors),
                ..Default::default()
            })
        })
        .await?;
        Ok(S3Response::new(output))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let max_keys = most(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let (after, done) = match &input.continuation_token {
            Some(token) => {
                let (is_prefix, last) = read_token(token)?;
                (last.clone(), is_prefix.then_some(last))
            }
            None => {
                let after = input.start_after.clone().unwrap_or_default();
                (after.clone(), Some(after))
            }
        };
        let query = Query { prefix, delimiter: input.delimiter.clone(), after, done, most: max_keys as usize };
        let (items, more) = self.list(query).await?;
        let encoding = input.encoding_type.as_ref();
        let next = items.last().filter(|_| more).map(token_of);
        let key_count = items.len() as i32;
        let (contents, prefixes) = sorted_out(items, encoding);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoded(input.prefix.unwrap_or_default(), encoding)),
            delimiter: input.delimiter.map(|text| encoded(text, encoding)),
            start_after: input.start_after.map(|text| encoded(text, encoding)),
            max_keys: Some(max_keys),
            key_count: Some(key_count),
            is_truncated: Some(more),
            continuation_token: input.continuation_token,
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }

    async fn list_objects(&self, req: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let max_keys = most(input.max_keys)?;
        let after = input.marker.clone().unwrap_or_default();
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone(),
            done: Some(after.clone()),
            after,
            most: max_keys as usize,
        };
        let (items, more) = self.list(query).await?;
        let encoding = input.encoding_type.as_ref();
        // Clients without a delimiter take the last key; S3 says it only with one, more is harmless.
        let next = items.last().filter(|_| more).map(|item| encoded(item.name().to_owned(), encoding));
        let (contents, prefixes) = sorted_out(items, encoding);
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(input.prefix.unwrap_or_default(), encoding)),
            marker: Some(encoded(input.marker.unwrap_or_default(), encoding)),
            delimiter: input.delimiter.map(|text| encoded(text, encoding)),
            max_keys: Some(max_keys),
            is_truncated: Some(more),
            next_marker: next,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.create_upload(req)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.take_part(req).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload(req).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.check_name(&req.input.bucket)?;
        self.uploads.abort(&req.input.upload_id)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.parts(req)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.check_name(&req.input.bucket)?;
        let prefix = req.input.prefix.unwrap_or_default();
        let uploads = self.uploads.open(&prefix);
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(req.input.bucket),
            prefix: Some(prefix),
            is_truncated: Some(false),
            uploads: Some(uploads),
            ..Default::default()
        }))
    }
}

/// The data type of that name; our own took the short one.
type Bucket_ = s3s::dto::Bucket;

/// The stamp of now, for what has no file.
pub(crate) fn stamp_now() -> Stamp {
    Stamp { inode: 0, modified_ns: unix_now().as_nanos() as i64, size: 0 }
}
