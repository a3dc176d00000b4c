// SPDX-License-Identifier: Apache-2.0
//! Reads a whole object into one buffer, for callers that decompress or parse whole objects.

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use penstock_types::{ByteRange, Deadline, Error, Result};

use crate::{Meta, ObjectRef, Store};

/// Maximum number of bytes reserved before any bytes arrive. The size that a store reports may be wrong.
const TRUSTED: u64 = 256 << 20;

/// Reads a whole object into one buffer. If the store has a checksum, verifies the bytes. If the bytes are damaged,
/// requests them once more. An object that arrives in one chunk is not copied.
///
/// More than 256 MiB are reserved in advance only if `size_hint`, which comes from a manifest, confirms the size.
/// Otherwise, the buffer grows as bytes arrive.
pub async fn read_whole(
    store: &dyn Store,
    object: &ObjectRef,
    size_hint: Option<u64>,
    deadline: Deadline,
) -> Result<(Meta, Bytes)> {
    match read_once(store, object, size_hint, deadline).await {
        Err(Error::Corrupt { .. }) => read_once(store, object, size_hint, deadline).await,
        result => result,
    }
}

async fn read_once(
    store: &dyn Store,
    object: &ObjectRef,
    size_hint: Option<u64>,
    deadline: Deadline,
) -> Result<(Meta, Bytes)> {
    let mut got = store.get_ranges(object, &[ByteRange::WHOLE], deadline).await?;
    let set_aside = got.meta.size.min(size_hint.unwrap_or(0).max(TRUSTED)) as usize;
    let mut only: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(chunk) = got.chunks.try_next().await? {
        match only.take() {
            None if all.is_empty() => only = Some(chunk.bytes),
            None => all.extend_from_slice(&chunk.bytes),
            Some(first) => {
                all.reserve(set_aside);
                all.extend_from_slice(&first);
                all.extend_from_slice(&chunk.bytes);
            }
        }
    }
    let bytes = only.unwrap_or_else(|| all.freeze());
    if bytes.len() as u64 != got.meta.size {
        let place = crate::place(store.root(), &object.key);
        let problem = format!("ended early (want {} bytes, have {} bytes)", got.meta.size, bytes.len());
        return Err(Error::corrupt(place, problem));
    }
    Ok((got.meta, bytes))
}
