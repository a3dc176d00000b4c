// SPDX-License-Identifier: Apache-2.0
//! Reads local files with positioned reads of large pieces on blocking threads, or with O_DIRECT (`direct`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use penstock_types::{ByteRange, Deadline, Error, Key, Result};

use super::direct::{LocalReads, is_cached};
use super::opened_file::{Opened, version};
use super::{Local, blocking};
use crate::{BufferPool, Chunk, GetResult, ObjectRef, Version};

/// Default size of one read in bytes. With larger reads, the copy from the page cache dominates the cost.
pub(super) const PIECE: u64 = 2 << 20;

/// Minimum size, in bytes, of chunks whose memory comes from the buffer pool.
const BUFFERED: usize = 64 << 10;

/// Size of an O_DIRECT chunk in bytes. It equals the size of one part of a large object.
const DIRECT_PIECE: u64 = 8 << 20;

/// Maximum number of concurrent O_DIRECT chunks for one object.
const DIRECT_IN_FLIGHT: usize = 4;

/// Minimum size of an O_DIRECT read in bytes. For smaller reads, the two thread switches of a ring cost more than
/// copying the bytes.
const MIN_DIRECT: u64 = 64 << 10;

struct Reader {
    piece: u64,
    buffers: Arc<BufferPool>,
    file: Arc<OwnedFd>,
    place: Arc<str>,
    version: Option<Version>,
    /// Ranges that remain to be read, as (index, start, end).
    left: std::collections::VecDeque<(usize, u64, u64)>,
    deadline: Deadline,
    first: Option<Result<Option<Chunk>>>,
}

pub(super) async fn get(
    store: &Local,
    object: &ObjectRef,
    ranges: &[ByteRange],
    deadline: Deadline,
) -> Result<GetResult> {
    let (object, ranges) = (object.clone(), ranges.to_vec());
    let (meta, reader, is_direct) = store
        .blocking("GET", deadline, move |store| {
            let Opened { file, meta } = store.open_object(&object.key)?;
            let place = store.place(&object.key);
            check_pin(&object, &place, meta.version.as_ref())?;
            let left = plan(&ranges, meta.size, &place)?;
            let total: u64 = left.iter().map(|(_, start, end)| end - start).sum();
            let is_direct = total >= MIN_DIRECT
                && match store.reads {
                    LocalReads::Threads => false,
                    LocalReads::Uring => true,
                    LocalReads::Auto => left.front().is_some_and(|(_, start, _)| !is_cached(&file, *start)),
                }
                && store.direct.takes(&file, &store.buffers);
            if !is_direct && total > PIECE {
                // Ignore errors, because this call only gives advice to the kernel.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
            }
            let mut reader = Reader {
                piece: store.piece,
                buffers: store.buffers.clone(),
                file: Arc::new(file),
                place: place.into(),
                version: meta.version.clone(),
                left,
                deadline,
                first: None,
            };
            // Read the first piece on the thread that opened the file. A small object then costs one thread switch.
            if !is_direct {
                reader.first = Some(reader.read());
            }
            Ok((meta, reader, is_direct))
        })
        .await?;
    if is_direct {
        return Ok(GetResult { chunks: direct(store.clone(), meta.size, reader), meta });
    }
    let chunks = stream::try_unfold(reader, |mut reader| async move {
        let next = match reader.first.take() {
            Some(first) => first?,
            None => {
                let deadline = reader.deadline;
                let (next, back) = blocking("GET", deadline, move || {
                    let mut reader = reader;
                    Ok((reader.read()?, reader))
                })
                .await?;
                reader = back;
                next
            }
        };
        Ok(next.map(|chunk| (chunk, reader)))
    });
    Ok(GetResult { meta, chunks: chunks.boxed() })
}

/// Streams the chunks of a file with O_DIRECT.
fn direct(store: Local, size: u64, mut reader: Reader) -> BoxStream<'static, Result<Chunk>> {
    let left = std::mem::take(&mut reader.left).into_iter().flat_map(|(range, start, end)| {
        (start..end).step_by(DIRECT_PIECE as usize).map(move |at| (range, at, end.min(at + DIRECT_PIECE)))
    });
    let reader = Arc::new(reader);
    let read = {
        let reader = reader.clone();
        move |(range, start, end)| {
            let (store, reader) = (store.clone(), reader.clone());
            async move {
                reader.deadline.check("GET")?;
                match store.direct.read(&reader.file, start, end, size, &store.buffers).await {
                    Ok(bytes) => Ok(Chunk { range, offset: start, bytes }),
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(reader.ended_early(start)),
                    Err(error) => Err(Error::from_io(&*reader.place, &error)),
                }
            }
        }
    };
    let check =
        stream::once(async move { reader.still_the_same() }).filter_map(|same| std::future::ready(same.err().map(Err)));
    stream::iter(left).map(read).buffered(DIRECT_IN_FLIGHT).chain(check).boxed()
}

fn check_pin(object: &ObjectRef, place: &str, have: Option<&Version>) -> Result<()> {
    match (&object.version, have) {
        (Some(want), Some(have)) if want != have => {
            Err(Error::Changed { place: place.to_owned(), want: want.to_string(), have: have.to_string() })
        }
        _ => Ok(()),
    }
}

/// Returns the non-empty ranges among `ranges`, as (index, start, end), for an object of `size` bytes. Returns
/// `Corrupt` if a range begins beyond the end.
pub fn plan(ranges: &[ByteRange], size: u64, place: &str) -> Result<std::collections::VecDeque<(usize, u64, u64)>> {
    let mut left = std::collections::VecDeque::new();
    for (index, range) in ranges.iter().enumerate() {
        if range.start > size || (range.start == size && !range.is_whole() && range.len > 0) {
            return Err(Error::corrupt(
                place,
                format!("has {size} bytes, but the range starts at byte {}", range.start),
            ));
        }
        if range.end(size) > range.start {
            left.push_back((index, range.start, range.end(size)));
        }
    }
    Ok(left)
}

impl Reader {
    /// Reads the next chunk. At the end of the file, also checks that the file has not changed since it was opened.
    fn read(&mut self) -> Result<Option<Chunk>> {
        let Some((range, start, end)) = self.left.pop_front() else { return self.still_the_same().map(|()| None) };
        let len = (end - start).min(self.piece) as usize;
        let bytes = if len < BUFFERED {
            let mut bytes = vec![0; len];
            let read = self.pread(&mut bytes, start)?;
            bytes.truncate(read);
            Bytes::from(bytes)
        } else {
            let mut buffer = self.buffers.take(len).map_err(|error| Error::from_io(&*self.place, &error))?;
            let read = self.pread(&mut buffer.as_mut()[..len], start)?;
            buffer.freeze(0..read)
        };
        if bytes.is_empty() {
            return Err(self.ended_early(start));
        }
        let next = start + bytes.len() as u64;
        if next < end {
            self.left.push_front((range, next, end));
        }
        Ok(Some(Chunk { range, offset: start, bytes }))
    }
}

impl Reader {
    /// Reads into `into` from offset `at`. Returns the number of bytes read, which is 0 at the end of the file.
    fn pread(&self, into: &mut [u8], at: u64) -> Result<usize> {
        loop {
            match rustix::io::pread(&self.file, &mut *into, at) {
                Ok(read) => return Ok(read),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.io(errno)),
            }
        }
    }

    fn io(&self, errno: rustix::io::Errno) -> Error {
        Error::from_io(&*self.place, &errno.into())
    }

    /// Returns an error if the file has changed since it was opened.
    fn still_the_same(&self) -> Result<()> {
        let now = version(&rustix::fs::fstat(&self.file).map_err(|errno| self.io(errno))?);
        match &self.version {
            Some(want) if *want != now => {
                Err(Error::Changed { place: self.place.to_string(), want: want.to_string(), have: now.to_string() })
            }
            _ => Ok(()),
        }
    }

    fn ended_early(&self, at: u64) -> Error {
        Error::Changed {
            place: self.place.to_string(),
            want: self.version.as_ref().map(ToString::to_string).unwrap_or_default(),
            have: format!("{at} bytes"),
        }
    }
}

impl Local {
    /// Returns the version of the file that now has the name `key`; `None` if no file has this name.
    pub(super) fn existing(&self, key: &Key) -> Result<Option<Version>> {
        match self.open_object(key) {
            Ok(opened) => Ok(opened.meta.version),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
