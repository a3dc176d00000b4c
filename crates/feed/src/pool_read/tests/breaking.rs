// SPDX-License-Identifier: Apache-2.0
//! Test store: a pool whose next reads fail as a test specifies. Such a read returns some zeros instead of the bytes,
//! and then an error.

use penstock_types::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;

/// Store whose next reads fail; see the module documentation.
#[derive(Debug)]
pub(super) struct Breaking {
    inner: Arc<dyn Store>,
    /// One entry per failing read: the number of chunks of zeros into which the range is divided, and the error that
    /// follows them. With 0 chunks, the call itself returns the error.
    next: Mutex<VecDeque<(u64, Error)>>,
    takes_writes: bool,
}

impl Breaking {
    pub fn new(inner: Arc<dyn Store>, next: Vec<(u64, Error)>) -> Self {
        Self { inner, next: Mutex::new(next.into()), takes_writes: true }
    }

    /// Creates a store that also rejects every write.
    pub fn refusing(inner: Arc<dyn Store>, next: Vec<(u64, Error)>) -> Self {
        Self { takes_writes: false, ..Self::new(inner, next) }
    }
}

pub(super) fn unreachable() -> Error {
    Error::Unreachable { place: "pool".into(), reason: "none of the DataNodes gave it".into() }
}

#[async_trait]
impl Store for Breaking {
    penstock_store::delegate_store!(|this| this.inner; root, capabilities, list, head, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let Some((pieces, error)) = lock(&self.next).pop_front() else {
            return self.inner.get_ranges(object, ranges, deadline).await;
        };
        if pieces == 0 {
            return Err(error);
        }
        let meta = self.inner.head(&object.key, deadline).await?;
        let (start, end) = (ranges[0].start, ranges[0].end(meta.size));
        let step = (end - start).div_ceil(pieces);
        let zeros = (start..end).step_by(step as usize).map(move |at| {
            let bytes = Bytes::from(vec![0; step.min(end - at) as usize]);
            Ok(penstock_store::Chunk { range: 0, offset: at, bytes })
        });
        let chunks = futures::stream::iter(zeros.chain([Err(error)]).collect::<Vec<_>>());
        Ok(GetResult { meta, chunks: chunks.boxed() })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        match self.takes_writes {
            true => self.inner.put(key, parts, options, deadline).await,
            false => Err(unreachable()),
        }
    }
}
