// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads: parts as temp files, joined into one object. An upload that is open when the endpoint stops is
//! aborted with it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::headers::Kept;
use super::{Bucket, Failure, blocking};
use crate::condition::{check_write, modified};
use crate::facts::{Checksum as StoredChecksum, Fact, Stamp};
use crate::folder::{Temp, read_all};
use crate::incoming::{Promise, hasher, receive, value_of};
use crate::seat::hex;

/// S3 refuses to join shorter parts, the last apart.
const SHORTEST_PART: u64 = 5 << 20;
const MOST_PARTS: i32 = 10_000;

struct PartHeld {
    temp: Temp,
    size: u64,
    etag: String,
    checksum: Option<StoredChecksum>,
    at: Stamp,
}

struct Upload {
    key: String,
    kept: Kept,
    algorithm: Option<String>,
    /// The checksum is of the whole object rather than of the parts' checksums.
    is_full: bool,
    /// Shared with the thread that joins them: an upload whose completion is refused stays open, as on S3.
    parts: BTreeMap<i32, Arc<PartHeld>>,
    at: Stamp,
}

/// Uploads that are open.
#[derive(Default)]
pub(crate) struct Uploads(Mutex<HashMap<String, Upload>>);

fn no_such_upload() -> S3Error {
    s3_error!(NoSuchUpload, "The specified upload does not exist. It may have been aborted or completed.")
}

impl Uploads {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Upload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self, id: &str) -> S3Result<()> {
        self.all().remove(id).map(drop).ok_or_else(no_such_upload)
    }

    /// Removes every part on disk.
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

/// What a completed upload becomes.
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

/// The checksum of an object or part that a request states, of that algorithm.
macro_rules! stated {
    ($input:expr, $algorithm:expr) => {
        match $algorithm {
            "CRC32C" => $input.checksum_crc32c.clone(),
            "CRC32" => $input.checksum_crc32.clone(),
            "CRC64NVME" => $input.checksum_crc64nvme.clone(),
            "SHA1" => $input.checksum_sha1.clone(),
            "SHA256" => $input.checksum_sha256.clone(),
            _ => None,
        }
    };
}

/// Sets the field of that algorithm.
macro_rules! state {
    ($output:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let value = Some(checksum.value.clone());
            match checksum.algorithm.as_str() {
                "CRC32C" => $output.checksum_crc32c = value,
                "CRC32" => $output.checksum_crc32 = value,
                "CRC64NVME" => $output.checksum_crc64nvme = value,
                "SHA1" => $output.checksum_sha1 = value,
                "SHA256" => $output.checksum_sha256 = value,
                _ => {}
            }
        }
    };
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
        // S3's defaults: CRC64NVME has no composite form, the others are composite unless asked.
        let is_full = asked.as_deref() == Some(ChecksumType::FULL_OBJECT)
            || (asked.is_none() && algorithm.as_deref() == Some("CRC64NVME"));
        let id = hex(&rand::random::<[u8; 16]>());
        let upload = Upload {
            key: input.key.clone(),
            kept: Kept::of(&req.headers, input.metadata, input.tagging.as_deref())?,
            algorithm,
            is_full,
            parts: BTreeMap::new(),
            at: Stamp::now(),
        };
        self.uploads.all().insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: input.checksum_type,
            ..Default::default()
        }))
    }

    pub(super) async fn take_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        if !(1..=MOST_PARTS).contains(&input.part_number) {
            return Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive"));
        }
        let algorithm = match self.uploads.all().get(&input.upload_id) {
            Some(upload) if upload.key == input.key => upload.algorithm.clone(),
            _ => return Err(no_such_upload()),
        };
        let mut promise = Promise::of(&req.headers);
        if promise.checksum.is_none() {
            promise.checksum = algorithm.map(|name| (name, None));
        }
        let received = receive(self.folder.clone(), input.body, promise, req.trailing_headers).await?;
        let mut output = UploadPartOutput { e_tag: Some(ETag::Strong(received.etag.clone())), ..Default::default() };
        state!(output, &received.checksum);
        let part = PartHeld {
            temp: received.temp,
            size: received.size,
            etag: received.etag,
            checksum: received.checksum,
            at: Stamp::now(),
        };
        match self.uploads.all().get_mut(&input.upload_id) {
            Some(upload) => upload.parts.insert(input.part_number, Arc::new(part)),
            None => return Err(no_such_upload()),
        };
        Ok(S3Response::new(output))
    }

    pub(super) async fn complete_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let wanted = input.multipart_upload.clone().and_then(|list| list.parts).unwrap_or_default();
        let (chosen, algorithm, is_full, kept) = {
            let all = self.uploads.all();
            let upload =
                all.get(&input.upload_id).filter(|upload| upload.key == input.key).ok_or_else(no_such_upload)?;
            check_parts(upload, &wanted)?;
            let chosen: Vec<_> =
                wanted.iter().filter_map(|part| upload.parts.get(&part.part_number?).cloned()).collect();
            (chosen, upload.algorithm.clone(), upload.is_full, upload.kept.clone())
        };
        let stated = algorithm.as_deref().and_then(|name| stated!(input, name));
        let (folder, key) = (self.folder.clone(), input.key.clone());
        let (if_match, if_none_match) = (input.if_match, input.if_none_match);
        let sizes = chosen.iter().map(|part| part.size).collect();
        let (etag, checksum) = blocking(move || {
            let Joined { temp, etag, checksum } = join(&chosen, algorithm.as_deref(), is_full, folder.temp()?)?;
            let differs = match (&stated, &checksum) {
                // A composite value may be stated without its `-N`.
                (Some(stated), Some(have)) => stated.split('-').next() != have.value.split('-').next(),
                _ => false,
            };
            if differs {
                let text = "The checksum of the object did not match the one you specified.";
                return Err(Failure(S3Error::with_message(S3ErrorCode::BadDigest, text)));
            }
            let fact = Fact { parts: sizes, ..kept.fact(etag.clone(), checksum.clone()) };
            folder.commit::<Failure>(&key, temp, fact, |there| {
                Ok(check_write(if_match.as_ref(), if_none_match.as_ref(), there)?)
            })?;
            Ok((etag, checksum))
        })
        .await?;
        self.uploads.all().remove(&input.upload_id);
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(etag)),
            ..Default::default()
        };
        state!(output, &checksum);
        Ok(S3Response::new(output))
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

    pub(super) fn parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let all = self.uploads.all();
        let upload = all.get(&input.upload_id).filter(|upload| upload.key == input.key).ok_or_else(no_such_upload)?;
        let most = input.max_parts.unwrap_or(1000).clamp(1, 1000) as usize;
        let after: i32 = input.part_number_marker.unwrap_or(0);
        let mut rest = upload.parts.range(after.saturating_add(1)..);
        let parts: Vec<Part> = rest
            .by_ref()
            .take(most)
            .map(|(number, held)| {
                let mut part = Part {
                    part_number: Some(*number),
                    size: Some(held.size as i64),
                    e_tag: Some(ETag::Strong(held.etag.clone())),
                    last_modified: Some(modified(held.at)),
                    ..Default::default()
                };
                state!(part, &held.checksum);
                part
            })
            .collect();
        let more = rest.next().is_some();
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(more),
            max_parts: Some(most as i32),
            next_part_number_marker: parts.last().filter(|_| more).and_then(|part| part.part_number),
            parts: Some(parts),
            ..Default::default()
        }))
    }
}

/// S3's rules for the list of parts that completes an upload.
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
            let same_tag = part.e_tag.as_ref().is_none_or(|tag| tag.value() == held.etag);
            let same_sum = held
                .checksum
                .as_ref()
                .is_none_or(|sum| stated!(part, sum.algorithm.as_str()).is_none_or(|stated| stated == sum.value));
            same_tag && same_sum
        };
        let Some(held) = held.filter(fits) else {
            return Err(s3_error!(InvalidPart, "One or more of the specified parts could not be found."));
        };
        if place + 1 < wanted.len() && held.size < SHORTEST_PART {
            return Err(s3_error!(EntityTooSmall, "Your proposed upload is smaller than the minimum allowed size"));
        }
    }
    Ok(())
}
