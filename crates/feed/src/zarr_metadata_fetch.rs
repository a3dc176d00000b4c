// SPDX-License-Identifier: Apache-2.0
//! Loads Zarr metadata before any record is read: the metadata of a dataset's arrays, and the indexes of the arrays'
//! shards.

use futures::{StreamExt, TryStreamExt, stream};
use penstock_types::{ByteRange, Deadline, Error, Result, with_separators};

use super::format::{FormatSpec, ZarrMetadata, zarr};
use super::source::Source;

/// Maximum number of concurrent requests.
const IN_FLIGHT: usize = 64;

/// Maximum size of an array's metadata in bytes. The attributes are text that people write, so larger metadata is an
/// error.
const MAX_METADATA: u64 = 64 << 20;

/// Maximum total size of all shard indexes in bytes.
const MAX_INDEXES: u64 = 256 << 20;

impl Source {
    /// Returns the format with all the metadata that it needs. Returns `None` if the format already has it.
    pub async fn resolved_format(&self, deadline: Deadline) -> Result<Option<FormatSpec>> {
        let FormatSpec::Zarr { arrays, metadata: None, patches } = self.format() else { return Ok(None) };
        let listing = self.listing();
        let metadata = zarr::metadata(arrays, listing)?;
        let found: Vec<(String, String)> = stream::iter(metadata)
            .map(|(path, object)| async move {
                let place = || self.listed_place(object);
                let size = listing.objects[object].size;
                if size > MAX_METADATA {
                    return Err(Error::corrupt(
                        place(),
                        format!("has {} bytes, which is too large for Zarr metadata", with_separators(size)),
                    ));
                }
                let bytes = self.listed(object, ByteRange::new(0, size), deadline).await?.0;
                let text = String::from_utf8(bytes.into()).map_err(|_| Error::corrupt(place(), "is not UTF-8"))?;
                Ok((path, text))
            })
            .buffered(IN_FLIGHT)
            .try_collect()
            .await?;
        let is_named = !arrays.is_empty();
        let mut metadata_read = ZarrMetadata::default();
        metadata_read.arrays.extend(found.into_iter().filter(|(_, json)| is_named || !zarr::is_group(json.as_bytes())));
        if metadata_read.arrays.is_empty() {
            return Err(Error::NotFound { place: format!("any array in the group {}", listing.url) });
        }
        let shards = zarr::shards(&metadata_read, listing)?;
        let bytes = shards.iter().map(|(_, _, range)| range.len).fold(0, u64::saturating_add);
        if bytes > MAX_INDEXES {
            let what = format!("a total of {} bytes of shard indexes ({})", with_separators(bytes), listing.url);
            return Err(Error::Unsupported { what, by: "the feed".to_owned() });
        }
        let indexes: Vec<(String, String)> = stream::iter(shards)
            .map(|(key, object, range)| async move {
                Ok::<_, Error>((key, zarr::hex(&self.listed(object, range, deadline).await?.0)))
            })
            .buffered(IN_FLIGHT)
            .try_collect()
            .await?;
        metadata_read.shards = indexes.into_iter().collect();
        let (arrays, patches, metadata) = (arrays.clone(), patches.clone(), Some(metadata_read));
        Ok(Some(FormatSpec::Zarr { arrays, metadata, patches }))
    }
}
