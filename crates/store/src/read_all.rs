// SPDX-License-Identifier: Apache-2.0
//! A whole object in one buffer, for callers that inflate or parse it at once.

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use penstock_types::{ByteRange, Deadline, Error, Result};

use crate::{Meta, ObjectRef, Store};

/// The most that is set aside before bytes arrive: a store that lies about a size shall not cost its memory.
const TRUSTED: u64 = 256 << 20;

/// Reads all of an object into one buffer, checked against its store's checksum where there is one; bytes that arrive
/// damaged are asked for once more. An object that came in one chunk is not copied.
///
/// `size_hint` (a manifest's) vouches for a size above 256 MiB, for which the buffer otherwise grows as bytes come.
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
