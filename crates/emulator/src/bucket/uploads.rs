// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads. Each part is stored as a temporary file (`parts`). Completion joins the parts into one object.
//! Stopping the endpoint aborts all open uploads.

use penstock_types::lock;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::headers::{StoredHeaders, checksum_type, state, stated};
use super::{Bucket, Failure, blocking};
use crate::fs_backend::{Temp, read_all};
use crate::key_path::hex;
use crate::object_metadata::{Checksum as StoredChecksum, Fact, Stamp};
use crate::preconditions::{check_write, modified};
use crate::request_body::{Received, hasher, value_of};

/// Minimum size of each part except the last one. S3 rejects smaller parts.
const MIN_PART: u64 = 5 << 20;

/// A part of an open upload, on disk.
pub(super) struct PartHeld {
    pub received: Received,
    pub at: Stamp,
}

pub(super) struct Upload {
    key: String,
    kept: StoredHeaders,
    algorithm: Option<String>,
    /// True if the checksum covers the bytes of the whole object; false if it covers the checksums of the parts.
    is_full: bool,
    /// Parts by number. The thread that joins the parts shares them with the upload, because the upload stays open if
    /// its completion fails, as on S3.
    pub parts: BTreeMap<i32, Arc<PartHeld>>,
    at: Stamp,
}

/// Result of a completed upload. If a client completes the same upload again, it receives the first response again, as
/// on S3. A client can therefore retry after a broken connection.
#[derive(Clone)]
struct Completed {
    key: String,
    etag: String,
    checksum: Option<StoredChecksum>,
}

/// Maximum number of completed uploads in memory. If it is exceeded, the oldest upload is dropped.
const MAX_COMPLETED: usize = 1000;

/// Open uploads and the most recently completed uploads.
#[derive(Default)]
pub(crate) struct MultipartStore {
    open: Mutex<HashMap<String, Upload>>,
    completed: Mutex<VecDeque<(String, Completed)>>,
}

fn no_such_upload() -> S3Error {
    s3_error!(NoSuchUpload, "The specified upload does not exist. It may have been aborted or completed.")
}

/// Returns the open upload with this ID and key.
pub(super) fn open_upload<'a>(all: &'a HashMap<String, Upload>, id: &str, key: &str) -> S3Result<&'a Upload> {
    all.get(id).filter(|upload| upload.key == key).ok_or_else(no_such_upload)
}

impl MultipartStore {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<String, Upload>> {
        lock(&self.open)
    }

    /// Returns the checksum algorithm of an open upload.
    pub(super) fn algorithm(&self, id: &str, key: &str) -> S3Result<Option<String>> {
        Ok(open_upload(&self.all(), id, key)?.algorithm.clone())
    }

    /// Adds a part to an open upload. Replaces an existing part with the same number.
    pub(super) fn add_part(&self, id: &str, number: i32, received: Received) -> S3Result<()> {
        let part = Arc::new(PartHeld { received, at: Stamp::now() });
        // Drop the replaced part, which removes its file, only after the map is unlocked.
        let replaced = self.all().get_mut(id).map(|upload| upload.parts.insert(number, part));
        replaced.map(drop).ok_or_else(no_such_upload)
    }

    fn complete(&self, id: String, completed: Completed) {
        let upload = self.all().remove(&id);
        drop(upload);
        let mut all = lock(&self.completed);
        all.truncate(MAX_COMPLETED - 1);
        all.push_front((id, completed));
    }

    fn completed(&self, id: &str, key: &str) -> Option<Completed> {
        let all = lock(&self.completed);
        all.iter().find(|(known, done)| known == id && done.key == key).map(|(_, done)| done.clone())
    }

    fn abort(&self, id: &str) -> S3Result<()> {
        self.all().remove(id).map(drop).ok_or_else(no_such_upload)
    }

    /// Drops all open uploads, which removes their parts from disk.
    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    fn open(&self, prefix: &str) -> Vec<MultipartUpload> {
        let all = self.all();
        let mut open: Vec<_> = all
            .iter()
            .filter(|(_, upload)| upload.key.starts_with(prefix))
            .map(|(id, upload)| MultipartUpload {
                key: Some(upload.key.clone()),
                upload_id: Some(id.clone()),
                initiated: Some(modified(upload.at)),
                ..Default::default()
            })
            .collect();
        open.sort_by(|a, b| (&a.key, &a.upload_id).cmp(&(&b.key, &b.upload_id)));
        open
    }
}

/// Result of joining the parts of an upload.
struct Joined {
    temp: Temp,
    etag: String,
    checksum: Option<StoredChecksum>,
}

fn join(parts: &[Arc<PartHeld>], algorithm: Option<&str>, is_full: bool, mut temp: Temp) -> io::Result<Joined> {
    let mut md5 = Md5::new();
    let mut full = algorithm.filter(|_| is_full).map(hasher);
    let mut composite = algorithm.filter(|_| !is_full).map(hasher);
    let count = parts.len();
    for part in parts {
        let part = &part.received;
        md5.update(unhex(&part.etag));
        if let (Some(sums), Some(checksum)) = (&mut composite, &part.checksum) {
            sums.update(&STANDARD.decode(&checksum.value).map_err(io::Error::other)?);
        }
        read_all(&part.temp.file, |bytes| {
            if let Some(sums) = &mut full {
                sums.update(bytes);
            }
            temp.file.write_all(bytes)
        })?;
    }
    let checksum = match (algorithm, full.and_then(value_of), composite.and_then(value_of)) {
        (Some(algorithm), Some(value), _) => {
            Some(StoredChecksum { algorithm: algorithm.to_owned(), value, composite: false })
        }
        (Some(algorithm), None, Some(value)) => {
            Some(StoredChecksum { algorithm: algorithm.to_owned(), value: format!("{value}-{count}"), composite: true })
        }
        _ => None,
    };
    Ok(Joined { temp, etag: format!("{}-{count}", hex(&md5.finalize())), checksum })
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Builds the response to a completion request.
fn completion(bucket: String, done: Completed) -> S3Response<CompleteMultipartUploadOutput> {
    let Completed { key, etag, checksum } = done;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{bucket}/{key}")),
        bucket: Some(bucket),
        key: Some(key),
        e_tag: Some(ETag::Strong(etag)),
        checksum_type: checksum.as_ref().map(|checksum| checksum_type(checksum.composite)),
        ..Default::default()
    };
    state!(output, &checksum);
    S3Response::new(output)
}

impl Bucket {
    pub(super) fn create_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let algorithm = input.checksum_algorithm.as_ref().map(|name| name.as_str().to_uppercase());
        let asked = input.checksum_type.as_ref().map(|kind| kind.as_str().to_owned());
        // Defaults of S3: CRC64NVME always covers the whole object. The other checksums are composite unless the client
        // requests otherwise.
        let is_full = asked.as_deref() == Some(ChecksumType::FULL_OBJECT)
            || (asked.is_none() && algorithm.as_deref() == Some("CRC64NVME"));
        let id = hex(&rand::random::<[u8; 16]>());
        let upload = Upload {
            key: input.key.clone(),
            kept: StoredHeaders::of(&req.headers, input.metadata, input.tagging.as_deref())?,
            algorithm,
            is_full,
            parts: BTreeMap::new(),
            at: Stamp::now(),
        };
        let kind = upload.algorithm.as_ref().map(|_| checksum_type(!is_full));
        self.uploads.all().insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: kind,
            ..Default::default()
        }))
    }

    pub(super) async fn complete_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let (folder, key) = (self.folder.clone(), input.key.clone());
        if let Some(done) = self.uploads.completed(&input.upload_id, &key) {
            let found = blocking(move || folder.find(&key)).await?;
            found.filter(|found| found.etag == done.etag).ok_or_else(no_such_upload)?;
            return Ok(completion(input.bucket, done));
        }
        let wanted = input.multipart_upload.clone().and_then(|list| list.parts).unwrap_or_default();
        let (chosen, algorithm, is_full, kept) = {
            let all = self.uploads.all();
            let upload = open_upload(&all, &input.upload_id, &input.key)?;
            check_parts(upload, &wanted)?;
            let chosen: Vec<_> =
                wanted.iter().filter_map(|part| upload.parts.get(&part.part_number?).cloned()).collect();
            (chosen, upload.algorithm.clone(), upload.is_full, upload.kept.clone())
        };
        let stated = algorithm.as_deref().and_then(|name| stated!(input, name));
        let (if_match, if_none_match) = (input.if_match, input.if_none_match);
        let parts = chosen.iter().map(|part| part.received.size).collect();
        let part_checksums = chosen.iter().map(|part| {
            let checksum = part.received.checksum.as_ref().filter(|sum| Some(&sum.algorithm) == algorithm.as_ref())?;
            Some(checksum.value.clone())
        });
        let part_checksums = part_checksums.collect::<Option<_>>().unwrap_or_default();
        let (etag, checksum) = blocking(move || {
            let Joined { temp, etag, checksum } = join(&chosen, algorithm.as_deref(), is_full, folder.temp()?)?;
            let differs = match (&stated, &checksum) {
                // Clients may omit the `-N` suffix of a composite value.
                (Some(stated), Some(have)) => stated.split('-').next() != have.value.split('-').next(),
                _ => false,
            };
            if differs {
                let text = "The checksum of the object did not match the one you specified.";
                return Err(Failure(S3Error::with_message(S3ErrorCode::BadDigest, text)));
            }
            let fact = Fact { parts, part_checksums, ..kept.fact(etag.clone(), checksum.clone()) };
            folder.commit::<Failure>(&key, temp, fact, |there| {
                Ok(check_write(if_match.as_ref(), if_none_match.as_ref(), there)?)
            })?;
            Ok((etag, checksum))
        })
        .await?;
        let done = Completed { key: input.key, etag, checksum };
        self.uploads.complete(input.upload_id, done.clone());
        Ok(completion(input.bucket, done))
    }

    pub(super) fn abort_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.check_name(&req.input.bucket)?;
        self.uploads.abort(&req.input.upload_id)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    pub(super) fn open_uploads(
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

/// Checks the list of parts in a completion request against S3's rules.
fn check_parts(upload: &Upload, wanted: &[CompletedPart]) -> S3Result<()> {
    if wanted.is_empty() {
        return Err(s3_error!(MalformedXML, "You must specify at least one part"));
    }
    if !wanted.is_sorted_by(|a, b| a.part_number < b.part_number) {
        return Err(s3_error!(InvalidPartOrder, "The list of parts was not in ascending order."));
    }
    for (place, part) in wanted.iter().enumerate() {
        let held = part.part_number.and_then(|number| upload.parts.get(&number));
        let fits = |held: &&Arc<PartHeld>| {
            let same_tag = part.e_tag.as_ref().is_none_or(|tag| tag.value() == held.received.etag);
            let same_sum = held
                .received
                .checksum
                .as_ref()
                .is_none_or(|sum| stated!(part, sum.algorithm.as_str()).is_none_or(|stated| stated == sum.value));
            same_tag && same_sum
        };
        let Some(held) = held.filter(fits) else {
            return Err(s3_error!(InvalidPart, "One or more of the specified parts could not be found."));
        };
        if place + 1 < wanted.len() && held.received.size < MIN_PART {
            return Err(s3_error!(EntityTooSmall, "Your proposed upload is smaller than the minimum allowed size"));
        }
    }
    Ok(())
}
