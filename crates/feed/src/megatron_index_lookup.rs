// SPDX-License-Identifier: Apache-2.0
//! Index files of Megatron-LM datasets: finds the `.idx` file of each `.bin` file, and reads the element type from the
//! first one.

use futures::{StreamExt, TryStreamExt, stream};
use penstock_record::megatron::{HEADER_LEN, header};
use penstock_types::{ByteRange, Deadline, Error, Result};

use super::format::FormatSpec;
use super::sidecar_indexes::names_of;
use super::source::Source;
use penstock_dataset::manifest::{Entry, Manifest};

/// Maximum number of concurrent requests for the sizes of index files.
const IN_FLIGHT: usize = 64;

impl Source {
    /// Returns the format and the index files of a Megatron dataset. The element type comes from the first index. If a
    /// window length is given, the format is `Tokens`. `known` are the index files that the listing contains. Returns
    /// `None` for other formats.
    ///
    /// # Errors
    /// `NotFound` if an index file is missing.
    pub async fn megatron(
        &self,
        known: Option<Manifest>,
        deadline: Deadline,
    ) -> Result<Option<(FormatSpec, Manifest)>> {
        let FormatSpec::Megatron { length, stride, eos, .. } = self.format().clone() else { return Ok(None) };
        let listing = self.listing();
        let known = known.filter(|known| known.url == listing.url).map(|known| known.objects).unwrap_or_default();
        let indexes: Vec<Entry> = stream::iter(0..listing.objects.len())
            .map(|object| {
                let [first, second] = names_of(listing.objects[object].key.as_bytes());
                let found = known.iter().find(|index| [&first[..], &second].contains(&index.key.as_bytes())).cloned();
                async move {
                    match found {
                        Some(found) => Ok(found),
                        // The listing of a single object or of a pattern does not contain the index file.
                        None => self.beside(second.as_slice(), deadline).await,
                    }
                }
            })
            .buffered(IN_FLIGHT)
            .try_collect()
            .await?;
        let Some(first) = indexes.first() else { return Err(Error::bug("a dataset without objects")) };
        let len = first.size.min(HEADER_LEN as u64);
        let place = format!("{}{}", listing.url, first.key);
        let head = self.range_beside(first, ByteRange::new(0, len), deadline).await?;
        let dtype = header(&head, &place)?.dtype.name().to_owned();
        let format = match length {
            Some(length) => {
                let stride = stride.unwrap_or(length);
                FormatSpec::Tokens { header_bytes: 0, dtype, length, stride, eos }
            }
            None => FormatSpec::Megatron { dtype: Some(dtype), length: None, stride: None, eos: None },
        };
        Ok(Some((format, Manifest { objects: indexes, ..Manifest::new(listing.url.clone(), Vec::new()) })))
    }
}
