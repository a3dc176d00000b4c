// SPDX-License-Identifier: Apache-2.0
//! Source of a feed: the objects of a dataset that contain records, and the store that serves these objects.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::Codec;
use penstock_store::{Buffer, BufferPool, Chunk, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Metrics, Result, Scheme, lock, now, with_separators};
use std::time::{Duration, Instant};

use super::MAX_PLANNED_IN_ORDER;
use super::batch_bounds::Steps;
use super::chunked_arrays::Blocks;
use super::format::array_rows::Rows;
use super::format::hive::{PartitionValue, Partitions};
use super::format::{ArrayBlocks, FormatSpec, Framing, framing};
use super::next_use::NextUse;
use super::object_content::{Content, Reads, gzip_check};
use super::offset_cache::OffsetCache;
use super::read_sizes::{MAX_AT_ONCE, PART, asked};
use super::shared_chunks::{Claim, SharedChunks};
use super::timing::{Trace, first_byte_of};
use crate::cache::{NodeCache, Transcode};
use crate::pool_read::Placements;
use penstock_dataset::manifest::{Entry, Manifest};
use penstock_dataset::order::Counts;
use penstock_dataset::record_index::RecordIndex;
use penstock_dataset::sampler::DatasetView;

/// Maximum number of concurrent parts per object.
const PARTS_IN_FLIGHT: usize = 8;

/// Maximum number of concurrent requests for the first bytes of objects.
const HEADS_IN_FLIGHT: usize = 64;

/// The objects of a dataset, and their store. Shared through an `Arc`.
#[derive(Debug)]
pub struct Source {
    store: Arc<dyn Store>,
    base: Key,
    /// Units that the sample order treats as objects: objects of the listing, or blocks of arrays.
    manifest: Arc<Manifest>,
    /// Listing of the objects in the store.
    listing: Arc<Manifest>,
    blocks: Option<Arc<Blocks>>,
    metrics: Arc<Metrics>,
    /// Pool of buffers. The chunks of a read are joined in such a buffer.
    buffers: Arc<BufferPool>,
    offsets: OffsetCache,
    /// Chunks of arrays that several blocks use.
    shared: SharedChunks,
    ignored: usize,
    format: FormatSpec,
    framing: Box<dyn Framing>,
    /// Hive partitions of a dataset of tables.
    partitions: Partitions,
    /// For each column of times: its type, and the first object in which the column was decoded.
    times: Mutex<HashMap<String, (String, u64)>>,
    index: Option<Arc<RecordIndex>>,
    schedule: Option<Arc<NextUse>>,
    is_local: bool,
    /// Node cache. If it is set, `store` is this cache.
    cache: Option<Arc<NodeCache>>,
}

/// Bytes of a whole object, and the times of the read.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub bytes: Bytes,
    pub sent: Instant,
    pub first_byte: Instant,
    pub done: Instant,
}

/// Content read from an object, and the times of the read.
#[derive(Debug)]
pub(crate) struct FetchedReads {
    pub content: Content,
    pub sent: Instant,
    pub first_byte: Instant,
    pub done: Instant,
}

impl Source {
    /// Creates a source of the objects of `manifest` that contain records. Keys are relative to `base` in `store`. The
    /// object names determine the format. If some names show the format (for example, `.tfrecord`), all other objects
    /// are ignored. If no name shows a format, all objects are read as TFRecords.
    pub fn new(store: Arc<dyn Store>, base: Key, manifest: Manifest, metrics: Arc<Metrics>) -> Result<Self> {
        let format = FormatSpec::of_names(&manifest)?.unwrap_or(FormatSpec::TFRECORD);
        Self::of_format(store, base, manifest, metrics, format)
    }

    /// Creates a source of the objects of `manifest` that contain records in the given format.
    pub fn of_format(
        store: Arc<dyn Store>,
        base: Key,
        mut manifest: Manifest,
        metrics: Arc<Metrics>,
        format: FormatSpec,
    ) -> Result<Self> {
        let is_index = |entry: &&Entry| format.is_index(&entry.key);
        let all = manifest.objects.len() - manifest.objects.iter().filter(is_index).count();
        format.retain(&mut manifest);
        if manifest.objects.is_empty() {
            return Err(Error::NotFound { place: format!("any object under {}", manifest.url) });
        }
        // If the listing contained an object and its decompressed copy, every sample would silently be read twice.
        if let Some(pair) = manifest.objects.windows(2).find(|pair| pair[0].logical_name() == pair[1].logical_name()) {
            return Err(Error::config(
                "dataset",
                format!(
                    "{} contains the same samples twice, as `{}` and as `{}`; select one form with a pattern (for example, {}*.gz)",
                    manifest.url, pair[0].key, pair[1].key, manifest.url
                ),
            ));
        }
        let ignored = all.saturating_sub(manifest.objects.len());
        let blocks = format.blocks(&manifest)?.map(Arc::new);
        let framing: Box<dyn Framing> = match &blocks {
            Some(blocks) => Box::new(Rows::new(blocks.clone())?),
            None => framing(&format, &manifest)?,
        };
        let partitions = if framing.is_table() { Partitions::of(&manifest) } else { Partitions::default() };
        let listing = Arc::new(manifest);
        let manifest = blocks.as_ref().map_or_else(|| listing.clone(), |blocks| Arc::new(blocks.manifest(&listing)));
        let (index, schedule, cache) = (None, None, None);
        let is_local = store.root().scheme == Scheme::File;
        let (buffers, offsets) = (BufferPool::of_process(), OffsetCache::new(manifest.objects.len()));
        Ok(Self {
            store,
            base,
            manifest,
            listing,
            blocks,
            metrics,
            buffers,
            offsets,
            shared: SharedChunks::default(),
            ignored,
            format,
            framing,
            partitions,
            times: Mutex::default(),
            index,
            schedule,
            is_local,
            cache,
        })
    }

    /// True if the objects are read from files on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns this source. It counts as local if `routes` states that all objects are files of this node.
    pub fn routed(self, routes: &Placements) -> Self {
        let is_local = self.is_local || self.listing.objects.iter().all(|entry| routes.has_own(&entry.key));
        Self { is_local, ..self }
    }

    /// Format of the dataset.
    pub fn format(&self) -> &FormatSpec {
        &self.format
    }

    /// Returns this source with a record index.
    pub fn with_index(self, index: Option<Arc<RecordIndex>>) -> Self {
        Self { index, ..self }
    }

    /// Returns this source with a node cache of at most `limit_bytes` below `folder`. `node` are the ranks that share
    /// the cache, in a job that reads `leaf`. `steps` assigns reads to ranks; it is given only if a position in the
    /// epoch is also the position in the leaf. `transcode` states when transposed copies are created.
    pub fn cached(
        self,
        folder: &Path,
        limit_bytes: u64,
        leaf: &DatasetView,
        steps: Option<Steps>,
        node: Range<u64>,
        transcode: Transcode,
    ) -> Result<Self> {
        let mut schedule = NextUse::new(self.listing.clone(), self.base.clone(), leaf.clone(), steps, node);
        if let Some(blocks) = &self.blocks {
            schedule = schedule.of_blocks(blocks, PART);
        }
        let schedule = Arc::new(schedule);
        let metrics = self.metrics.clone();
        let cache = NodeCache::new(self.store, folder, limit_bytes, schedule.clone(), metrics, transcode)?;
        let cache = Arc::new(cache);
        Ok(Self { store: cache.clone(), schedule: Some(schedule), cache: Some(cache), ..self })
    }

    /// Returns one sentence on whether and why the node cache creates transposed copies. Returns `None` before the
    /// decision.
    pub fn transcoding(&self) -> Option<String> {
        self.cache.as_ref()?.transcoding()
    }

    /// Reports the progress of an epoch to the node cache. `position` is the position in `epoch`, counted in the leaf.
    pub(crate) fn reached(&self, epoch: u64, position: u64) {
        if let Some(schedule) = &self.schedule {
            schedule.reached(epoch, position);
        }
    }

    /// True if [`Source::learn_rows`] pays off: an object has more rows than are planned ahead.
    pub fn has_long_columns(&self, counts: &Counts) -> bool {
        let is_plain = |object| self.codec(object) == Codec::None;
        self.framing.head_for_count().is_some()
            && counts.most() > MAX_PLANNED_IN_ORDER
            && (0..self.manifest.objects.len() as u64).all(is_plain)
    }

    /// Computes the row positions of all objects from their headers, so that the objects can be read in ranges. Sends
    /// one request for each object that the index does not contain.
    pub async fn learn_rows(&self, deadline: Deadline) -> Result<()> {
        let objects = 0..self.manifest.objects.len() as u64;
        let most = self.framing.head_for_count().unwrap_or(0);
        let learn = |object: u64| async move {
            let head = self.head(object, most, deadline).await?;
            let rows = self.framing.rows_of_head(&head, self.entry(object).size, &self.place(object))?;
            self.offsets.note_rows(object, rows, &head);
            Ok(())
        };
        stream::iter(objects.filter(|&object| self.locator().span(object, 0).is_none()))
            .map(learn)
            .buffer_unordered(HEADS_IN_FLIGHT)
            .try_collect()
            .await
    }

    /// Cache of record offsets for objects without an index.
    pub(super) fn offsets(&self) -> &OffsetCache {
        &self.offsets
    }

    pub(crate) fn index(&self) -> Option<&RecordIndex> {
        self.index.as_deref()
    }

    /// Unique file name for this dataset in a cache folder, derived from its location and format.
    pub fn cache_name(&self) -> Result<String> {
        let place = self.store.root().with_key(self.base.clone()).to_string();
        let text = format!("{place}\n{}\n{}", self.manifest.url, self.format.to_json()?);
        Ok(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes())))
    }

    /// Returns a `Config` error if this column of times (for example, `timestamp[us, UTC]`) has another unit in an
    /// object that was decoded earlier: a batch would mix integers of both units. The error policy cannot skip this
    /// error, because it is not the error of one record.
    pub(crate) fn check_time(&self, column: &str, time: &str, object: u64) -> Result<()> {
        let unit = |time: &str| time.split([',', ']']).next().unwrap_or_default().to_owned();
        let mut times = lock(&self.times);
        let Some((first, other)) = times.get(column) else {
            times.insert(column.to_owned(), (time.to_owned(), object));
            return Ok(());
        };
        if unit(first) == unit(time) {
            return Ok(());
        }
        let problem = format!(
            "column `{column}` is {time} in {}, but {first} in {}; write all files with the same unit, or select fields without \
             this column",
            self.place(object),
            self.place(*other)
        );
        Err(Error::config("fields", problem))
    }

    /// Hive partitions of a dataset of tables.
    pub(crate) fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Values of the Hive partitions of an object.
    pub(crate) fn partition_values(&self, object: u64) -> Vec<(&str, PartitionValue)> {
        self.partitions.values(&self.entry(object).key)
    }

    pub(crate) fn framing(&self) -> &dyn Framing {
        &*self.framing
    }

    /// Units that the sample order treats as objects: the objects of the listing, sorted by logical name, or the blocks
    /// of arrays.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Listing of the objects in the store.
    pub fn listing(&self) -> &Manifest {
        &self.listing
    }

    pub(super) fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_deref()
    }

    /// Blocks of arrays, with only the data that the sample order needs.
    pub fn array_blocks(&self) -> Option<ArrayBlocks> {
        self.blocks.as_ref().map(|blocks| ArrayBlocks::of(blocks, &self.listing))
    }

    /// Memory, in bytes, for the chunks that the patches of different blocks share in a shuffle window of `window`
    /// blocks. It is 0 if the source has a node cache, which stores these chunks on its disk.
    pub(super) fn shared_bytes(&self, window: u64) -> u64 {
        let Some(blocks) = self.blocks.as_ref().filter(|blocks| blocks.patches.is_some()) else { return 0 };
        let (most, all) = blocks.shared();
        if self.cache.is_some() { 0 } else { most.saturating_mul(window).min(all) }
    }

    /// Sets the memory, in bytes, for the chunks that several blocks share.
    pub(super) fn set_shared_bytes(&self, bytes: u64) {
        self.shared.set_capacity(bytes);
    }

    /// Claims the chunks of a block before it is read. The caller must claim blocks in the order in which they are
    /// needed.
    pub(super) fn claim(&self, object: u64) -> Option<Vec<Claim>> {
        self.shared.claim(&self.blocks.as_ref()?.blocks[object as usize])
    }

    /// Number of objects in the listing that are ignored. The names of these objects show that they contain no records.
    pub fn ignored(&self) -> usize {
        self.ignored
    }

    /// Metrics of this source's requests.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn entry(&self, object: u64) -> &Entry {
        &self.manifest.objects[object as usize]
    }

    /// URL of an object. For a block of arrays, a description of the block.
    pub fn place(&self, object: u64) -> String {
        match &self.blocks {
            Some(blocks) => blocks.place(object),
            None => self.place_of(self.entry(object)),
        }
    }

    /// URL of an object of the listing.
    pub(crate) fn listed_place(&self, number: usize) -> String {
        self.place_of(&self.listing.objects[number])
    }

    fn place_of(&self, entry: &Entry) -> String {
        self.store.root().with_key(self.below_root(entry)).to_string()
    }

    /// Key of an object below the store's root. The root of a `file` store has a key of its own, which is part of the
    /// path.
    fn below_root(&self, entry: &Entry) -> Key {
        let key = self.base.join(entry.key.as_bytes());
        let root = &self.store.root().as_folder().key;
        if root.as_bytes() == b"/" || root.is_empty() { key } else { root.join(key.as_bytes()) }
    }

    /// Codec of an object.
    pub(crate) fn codec(&self, object: u64) -> Codec {
        let entry = self.entry(object);
        match entry.codec_as_read() {
            Codec::None if entry.key.as_bytes().to_ascii_lowercase().ends_with(b".tgz") => Codec::Gzip,
            Codec::None if entry.key.as_bytes().ends_with(b".mds.zstd") => Codec::Zstd,
            Codec::None => match self.format {
                FormatSpec::TfRecord { compression } => compression,
                _ => Codec::None,
            },
            codec => codec,
        }
    }

    /// Estimated size of a sample's variable-length fields: the stored size of the sample. If an object is compressed,
    /// the estimate is four times the stored size.
    pub(crate) fn stored_a_sample(&self, counts: &Counts) -> u64 {
        let ratio =
            if (0..self.manifest.objects.len() as u64).any(|object| self.codec(object) != Codec::None) { 4 } else { 1 };
        self.manifest.bytes().saturating_mul(ratio) / counts.samples().max(1)
    }

    fn reference(&self, entry: &Entry) -> ObjectRef {
        ObjectRef { key: self.base.join(entry.key.as_bytes()), version: entry.version.clone() }
    }

    /// Reads the whole object, at its pinned version.
    pub(crate) async fn fetch(&self, object: u64, deadline: Deadline) -> Result<Fetched> {
        let entry = self.entry(object);
        let (size, sent) = (entry.size, now());
        if let Some(blocks) = &self.blocks {
            return self.fetch_block(blocks, object, deadline).await;
        }
        if size <= MAX_AT_ONCE {
            let (bytes, first_byte) = self.range(object, ByteRange::WHOLE, size, deadline).await?;
            return Ok(Fetched { bytes, sent, first_byte, done: now() });
        }
        let parts =
            (0..size).step_by(PART as usize).map(|start| (entry, ByteRange::new(start, PART.min(size - start))));
        self.fetch_parts(parts, size, sent, deadline).await
    }

    /// Reads the chunks of a block and concatenates them. Each chunk is read at the object version in the listing.
    async fn fetch_block(&self, blocks: &Blocks, block: u64, deadline: Deadline) -> Result<Fetched> {
        let stretches = blocks.blocks[block as usize].stretches(PART);
        let parts = stretches.into_iter().map(|(object, range)| (&self.listing.objects[object], range));
        self.fetch_parts(parts, self.entry(block).size, now(), deadline).await
    }

    /// Reads the chunks of a block that no earlier block reads. Concatenates all chunks of the block, like
    /// [`Source::fetch_block`].
    async fn fetch_claimed(
        &self,
        blocks: &Blocks,
        block: u64,
        claims: Vec<Claim>,
        deadline: Deadline,
    ) -> Result<Fetched> {
        let (size, sent) = (self.entry(block).size, now());
        let mut whole = self.buffer(size)?;
        // Reads as (object, range, offset in the buffer). Adjacent chunks are read together.
        let mut runs: Vec<(usize, ByteRange, usize)> = Vec::new();
        let (mut published, mut reused, mut at) = (Vec::new(), Vec::new(), 0);
        for (stored, claim) in blocks.blocks[block as usize].stored().zip(claims) {
            let (object, range, end) = (stored.object, stored.range, at + stored.range.len as usize);
            match claim {
                Claim::Reuse(content) => reused.push((object, range, at..end, content)),
                Claim::Read(publish) => {
                    published.extend(publish.map(|publish| (publish, at..end)));
                    match runs.last_mut() {
                        Some((last, before, start))
                            if *last == object
                                && before.start + before.len == range.start
                                && *start + before.len as usize == at =>
                        {
                            before.len += range.len;
                        }
                        _ => runs.push((object, range, at)),
                    }
                }
            }
            at = end;
        }
        let beyond = || Error::bug(format!("the chunks of {} have more than {size} bytes in total", self.place(block)));
        let (mut rest, mut done, mut reads) = (&mut whole.as_mut()[..size as usize], 0, Vec::new());
        for (object, range, at) in runs {
            let entry = &self.listing.objects[object];
            (_, rest) = rest.split_at_mut_checked(at - done).ok_or_else(beyond)?;
            done = at + range.len as usize;
            for start in (0..range.len).step_by(PART as usize) {
                let part = ByteRange::new(range.start + start, PART.min(range.len - start));
                let (into, behind) = rest.split_at_mut_checked(part.len as usize).ok_or_else(beyond)?;
                rest = behind;
                reads.push(async move {
                    let first_byte = self.read_into(entry, asked(entry, part), into, deadline).await?;
                    Ok::<_, Error>((first_byte, now()))
                });
            }
        }
        let mut came: Vec<(Instant, Instant)> = stream::iter(reads).buffered(PARTS_IN_FLIGHT).try_collect().await?;
        for (publish, at) in published {
            // Copy the bytes, because a slice of the buffer would keep the whole buffer in memory.
            publish.send_replace(Some(Bytes::copy_from_slice(&whole.as_ref()[at])));
        }
        // Earlier claims read these chunks. A block waits only for blocks that were claimed earlier, so there is no
        // deadlock.
        for (object, range, at, mut content) in reused {
            let found = content.wait_for(Option::is_some).await.ok().and_then(|bytes| bytes.clone());
            let into = &mut whole.as_mut()[at];
            match found {
                Some(bytes) => into.copy_from_slice(&bytes),
                None => {
                    let entry = &self.listing.objects[object];
                    came.push((self.read_into(entry, asked(entry, range), into, deadline).await?, now()));
                }
            }
        }
        let bytes = whole.freeze(0..size as usize);
        let first_byte = if came.is_empty() { now() } else { first_byte_of(&mut came, sent) };
        Ok(Fetched { bytes, sent, first_byte, done: now() })
    }

    /// Reads `parts` concurrently into one buffer, in which they are concatenated. `size` is the total size of the
    /// parts in bytes.
    async fn fetch_parts<'a>(
        &'a self,
        parts: impl Iterator<Item = (&'a Entry, ByteRange)>,
        size: u64,
        sent: Instant,
        deadline: Deadline,
    ) -> Result<Fetched> {
        let mut whole = self.buffer(size)?;
        let mut rest = &mut whole.as_mut()[..size as usize];
        let mut reads = Vec::new();
        for (entry, range) in parts {
            let beyond = || Error::bug(format!("the parts of {} have more than {size} bytes", self.place_of(entry)));
            let (into, behind) = rest.split_at_mut_checked(range.len as usize).ok_or_else(beyond)?;
            rest = behind;
            reads.push(async move {
                let first_byte = self.read_into(entry, asked(entry, range), into, deadline).await?;
                Ok::<_, Error>((first_byte, now()))
            });
        }
        let mut came: Vec<(Instant, Instant)> = stream::iter(reads).buffered(PARTS_IN_FLIGHT).try_collect().await?;
        let bytes = whole.freeze(0..size as usize);
        Ok(Fetched { bytes, sent, first_byte: first_byte_of(&mut came, sent), done: now() })
    }

    /// Reads a range of an object of the listing. Also returns the time at which the first byte arrived.
    pub(crate) async fn listed(&self, object: usize, range: ByteRange, deadline: Deadline) -> Result<(Bytes, Instant)> {
        let entry = &self.listing.objects[object];
        self.range_of(entry, asked(entry, range), range.len, deadline).await
    }

    /// Returns the size and version of an object that the listing does not contain.
    pub(crate) async fn beside(&self, key: &[u8], deadline: Deadline) -> Result<Entry> {
        let meta = self.store.head(&self.base.join(key), deadline).await?;
        Ok(Entry { version: meta.version, ..Entry::new(Key::new(key.to_vec()), meta.size) })
    }

    /// Reads a range of an object that the listing does not contain.
    pub(crate) async fn range_beside(&self, entry: &Entry, range: ByteRange, deadline: Deadline) -> Result<Bytes> {
        Ok(self.range_of(entry, asked(entry, range), range.len, deadline).await?.0)
    }

    /// Reads the ranges `reads` of an object.
    pub(crate) async fn fetch_reads(&self, object: u64, reads: &Reads, deadline: Deadline) -> Result<FetchedReads> {
        let Some(ranges) = &reads.ranges else { return self.fetch_whole(object, deadline).await };
        let sent = now();
        let parts: Vec<(u64, Bytes, (Instant, Instant))> = stream::iter(ranges.clone())
            .map(|range| async move {
                let (bytes, first_byte) = self.range(object, range, range.len, deadline).await?;
                Ok::<_, Error>((range.start, bytes, (first_byte, now())))
            })
            .buffered(PARTS_IN_FLIGHT)
            .try_collect()
            .await?;
        let first_byte = first_byte_of(&mut parts.iter().map(|part| part.2).collect::<Vec<_>>(), sent);
        let content = Content::Ranges(parts.into_iter().map(|(start, bytes, _)| (start, bytes)).collect());
        Ok(FetchedReads { content, sent, first_byte, done: now() })
    }

    /// Reads the whole object: as stored, or as a transposed copy from the node cache.
    async fn fetch_whole(&self, object: u64, deadline: Deadline) -> Result<FetchedReads> {
        let codec = self.codec(object);
        let may_be_in_planes = codec != Codec::None && self.blocks.is_none() && !self.framing.is_table();
        let planes = self.cache.as_ref().filter(|_| may_be_in_planes);
        let (reference, sent) = (self.reference(self.entry(object)), now());
        if let Some(cache) = planes
            && let Some(content) = cache.in_planes(&reference).await?
        {
            let came = now();
            return Ok(FetchedReads { content: Content::Planes(content), sent, first_byte: came, done: came });
        }
        let Fetched { bytes, sent, first_byte, done } = self.fetch(object, deadline).await?;
        let made = match planes {
            Some(cache) => cache.keep_planes(&reference, codec, &bytes, gzip_check(&*self.framing)).await?,
            None => None,
        };
        let content = made.map_or_else(|| Content::Whole(bytes), Content::Planes);
        Ok(FetchedReads { content, sent, first_byte, done })
    }

    /// Reads the ranges `reads` of an object with a timeout. Also returns the times of the read. If the object is a
    /// block that shares chunks with other blocks, `claims` are the block's claims.
    pub(super) async fn fetched(
        &self,
        object: u64,
        reads: &Reads,
        claims: Option<Vec<Claim>>,
        within: Duration,
    ) -> (Result<Content>, Trace) {
        let (sent, deadline) = (now(), Deadline::within(within));
        let found = match (claims, &self.blocks) {
            (Some(claims), Some(blocks)) => {
                let fetched = self.fetch_claimed(blocks, object, claims, deadline).await;
                fetched.map(|Fetched { bytes, sent, first_byte, done }| FetchedReads {
                    content: Content::Whole(bytes),
                    sent,
                    first_byte,
                    done,
                })
            }
            _ => self.fetch_reads(object, reads, deadline).await,
        };
        match found {
            Ok(found) => (Ok(found.content), Trace::fetched(found.sent, found.first_byte, found.done)),
            Err(error) => (Err(error), Trace::fetched(sent, now(), now())),
        }
    }

    /// Reads `len` bytes of an object, from byte `start` on.
    pub(crate) async fn stretch(&self, object: u64, start: u64, len: u64, deadline: Deadline) -> Result<Bytes> {
        Ok(self.range(object, ByteRange::new(start, len), len, deadline).await?.0)
    }

    /// Reads the first `most` bytes of an object, or fewer if the object is smaller.
    pub(crate) async fn head(&self, object: u64, most: u64, deadline: Deadline) -> Result<Bytes> {
        let len = self.entry(object).size.min(most);
        if len == 0 {
            return Ok(Bytes::new());
        }
        Ok(self.range(object, ByteRange::new(0, len), len, deadline).await?.0)
    }

    /// Reads the last `most` bytes of an object, or fewer if the object is smaller.
    pub(crate) async fn end(&self, object: u64, most: u64, deadline: Deadline) -> Result<Bytes> {
        let size = self.entry(object).size;
        let len = size.min(most);
        if len == 0 {
            return Ok(Bytes::new());
        }
        Ok(self.range(object, ByteRange::new(size - len, len), len, deadline).await?.0)
    }

    /// Reads the last four bytes, which contain the content size of a gzip object.
    pub(crate) async fn last_four(&self, object: u64, deadline: Deadline) -> Result<[u8; 4]> {
        let size = self.entry(object).size;
        let cut = || {
            Error::corrupt(self.place(object), format!("ends inside its gzip header ({} bytes)", with_separators(size)))
        };
        let start = size.checked_sub(4).ok_or_else(cut)?;
        let (bytes, _) = self.range(object, ByteRange::new(start, 4), 4, deadline).await?;
        bytes.as_ref().try_into().map_err(|_| cut())
    }

    /// Reads one range, and returns an error unless it has exactly `want` bytes. Also returns the time at which the
    /// first byte arrived.
    async fn range(&self, object: u64, range: ByteRange, want: u64, deadline: Deadline) -> Result<(Bytes, Instant)> {
        self.range_of(self.entry(object), range, want, deadline).await
    }

    async fn range_of(
        &self,
        entry: &Entry,
        range: ByteRange,
        want: u64,
        deadline: Deadline,
    ) -> Result<(Bytes, Instant)> {
        let mut chunks = self.chunks(entry, range, deadline).await?;
        let first = chunks.next().await.transpose()?;
        let first_byte = now();
        let Some(first) = first else { return self.complete(entry, 0, want).map(|()| (Bytes::new(), first_byte)) };
        let came = first.bytes.len() as u64;
        if came >= want {
            // Read to the end of the response, because a checksum is verified only after the last chunk.
            let more = drained(chunks, &mut [], 0).await?;
            return self.complete(entry, came + more, want).map(|()| (first.bytes, first_byte));
        }
        let mut joined = self.buffer(want)?;
        let into = &mut joined.as_mut()[..want as usize];
        into[..first.bytes.len()].copy_from_slice(&first.bytes);
        let came = drained(chunks, into, came).await?;
        self.complete(entry, came, want)?;
        Ok((joined.freeze(0..want as usize), first_byte))
    }

    /// Reads a range into `into`, which has the size of the range. Returns the time at which the first byte arrived.
    async fn read_into(&self, entry: &Entry, range: ByteRange, into: &mut [u8], deadline: Deadline) -> Result<Instant> {
        let mut chunks = self.chunks(entry, range, deadline).await?;
        let first = chunks.next().await.transpose()?;
        let first_byte = now();
        let chunks = stream::iter(first.map(Ok)).chain(chunks).boxed();
        let want = into.len() as u64;
        let came = drained(chunks, into, 0).await?;
        self.complete(entry, came, want).map(|()| first_byte)
    }

    /// Requests a range, and returns its chunks. Returns an error if the object's size has changed.
    async fn chunks(
        &self,
        entry: &Entry,
        range: ByteRange,
        deadline: Deadline,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let answer = self.store.get_ranges(&self.reference(entry), &[range], deadline).await?;
        // Compare the sizes, because a store may not have object versions.
        if answer.meta.size != entry.size {
            return Err(Error::resized(self.place_of(entry), entry.size, answer.meta.size));
        }
        Ok(answer.chunks)
    }

    fn complete(&self, entry: &Entry, came: u64, want: u64) -> Result<()> {
        if came == want {
            return Ok(());
        }
        let problem = format!("returned {} bytes (requested {})", with_separators(came), with_separators(want));
        Err(Error::corrupt(self.place_of(entry), problem))
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        let none = |why: std::io::Error| Error::System {
            place: "memory".to_owned(),
            reason: format!("cannot allocate {} bytes for an object: {why}", with_separators(bytes)),
        };
        usize::try_from(bytes)
            .map_err(|_| std::io::ErrorKind::OutOfMemory.into())
            .and_then(|bytes| self.buffers.take(bytes))
            .map_err(none)
    }
}

/// Copies chunks into `into`, starting at `at`. Returns the end of the received bytes, counting bytes that do not fit.
async fn drained(mut chunks: BoxStream<'static, Result<Chunk>>, into: &mut [u8], at: u64) -> Result<u64> {
    let mut at = at as usize;
    while let Some(chunk) = chunks.next().await {
        let bytes = chunk?.bytes;
        if let Some(room) = at.checked_add(bytes.len()).and_then(|end| into.get_mut(at..end)) {
            room.copy_from_slice(&bytes);
        }
        at = at.saturating_add(bytes.len());
    }
    Ok(at as u64)
}
