// SPDX-License-Identifier: Apache-2.0
//! Transposed copies of compressed objects: the cache decompresses an object once, and stores a transposed copy.
//! Reading the copy is faster than decompressing the object again.
//!
//! Owns the copies, and decides by measurements whether to create them. If a copy may be invalid, the stored bytes are
//! used. An object without a copy costs the same in every epoch.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use penstock_codec::{
    Codec, GzipCheck, Planes, decompress_into, decompress_into_checked, gzip_size_hint, restore_transposed, transpose,
};
use penstock_store::{Meta, ObjectRef};
use penstock_types::{ByteRange, Error, Metric, Result, Stopwatch, Url, lock, with_separators};
use tokio::sync::Semaphore;

use super::directory::EntryLock;
use super::entry::{Form, Name, Writer, disk_bytes};
use super::{AccessPlan, Admission, Extent, NodeCache, blocking};

/// Number of objects that are measured before `Transcode::Auto` decides.
const TRIALS: usize = 3;
/// Number of reads of each form that are timed per object. The fastest read counts.
const TURNS: usize = 3;

/// Maximum time to read a transposed copy, as a fraction of the time to decompress the object. If reading takes longer,
/// copies do not pay off.
const WORTH: f64 = 0.8;

/// Maximum total decompressed size, in bytes, of the objects that are transcoded at the same time. At most one thread
/// per core transcodes. Transcoding takes three times this memory, which is not part of a feed's budget.
const MAKING: u64 = 256 << 20;

/// Maximum decompressed size, in bytes, of an object for which a copy is created.
const MAX_INFLATED: u64 = 64 << 20;

/// Number of bytes per permit of the semaphore `gate`.
const UNIT: u64 = 1 << 20;

/// Policy for caching compressed objects as transposed copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transcode {
    /// Never create copies.
    #[default]
    Never,
    /// Create copies if measurements of the first objects show that they pay off.
    Auto,
    /// Create a copy of every object, unless the copy would be larger than the object.
    Always,
}

impl FromStr for Transcode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "never" => Ok(Self::Never),
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            other => Err(Error::config("transcode", format!("`{other}` is not one of never, auto, always"))),
        }
    }
}

/// Measurements of one object, as stored and as a transposed copy.
#[derive(Debug, Clone, Copy)]
struct Trial {
    inflated: Duration,
    read: Duration,
    stored: u64,
    planes: u64,
}

/// Decision whether to create copies, and its reason.
#[derive(Debug, Clone)]
struct Verdict {
    keeps: bool,
    why: String,
}

impl Verdict {
    /// Decides from trials of the dataset's first objects. `set` is the dataset's stored size in bytes, and `limit` is
    /// the cache size in bytes. The trial of an object that could not be copied is `None`.
    fn of(tried: &[Option<Trial>], set: u64, limit: u64) -> Self {
        let trials: Vec<Trial> = tried.iter().flatten().copied().collect();
        if trials.is_empty() {
            let why = format!(
                "cached as stored: each of the first {} objects is invalid or larger than {} bytes when decompressed",
                tried.len(),
                with_separators(MAX_INFLATED)
            );
            return Self { keeps: false, why };
        }
        let sum = |of: fn(&Trial) -> f64| trials.iter().map(of).sum::<f64>();
        let inflated = sum(|trial| trial.inflated.as_secs_f64());
        let read = sum(|trial| trial.read.as_secs_f64());
        let ratio = sum(|trial| trial.planes as f64) / sum(|trial| trial.stored as f64).max(1.0);
        let each = |seconds: f64| seconds / trials.len() as f64 * 1e3;
        let measured = format!(
            "{:.2} ms to read a transposed copy, {:.2} ms to decompress a stored object; size ratio {ratio:.2}",
            each(read),
            each(inflated)
        );
        let need = disk_bytes((set as f64 * ratio) as u64);
        let (keeps, because) = if ratio > 1.0 {
            (false, "cached as stored: transposed copies would be larger".to_owned())
        } else if need > limit {
            // An evicted copy must be created again. That costs more than the copy saves.
            (
                false,
                format!(
                    "cached as stored: transposed copies need {} bytes, but the limit is {}",
                    with_separators(need),
                    with_separators(limit)
                ),
            )
        } else if read > WORTH * inflated {
            (false, "cached as stored: transposed copies would gain too little".to_owned())
        } else {
            (true, "cached as transposed copies".to_owned())
        };
        Self { keeps, why: format!("{because} ({measured})") }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

#[derive(Debug, Default)]
struct State {
    trials: Vec<Option<Trial>>,
    /// Best layout for the first object. This layout is used for all objects.
    form: Option<Planes>,
    verdict: Option<Verdict>,
    /// Objects that could not be copied. They are recorded so that a failed attempt is not repeated in every epoch.
    refused: HashSet<Name>,
}

/// Creates transposed copies for one dataset, and decides whether they pay off.
#[derive(Debug)]
pub(super) struct Transcoder {
    transcode: Transcode,
    future: Arc<dyn AccessPlan>,
    limit: u64,
    /// Minimum number of permits per object.
    share: u64,
    gate: Arc<Semaphore>,
    state: Mutex<State>,
}

impl Transcoder {
    pub fn new(transcode: Transcode, future: Arc<dyn AccessPlan>, limit: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let gate = Arc::new(Semaphore::new((MAKING / UNIT) as usize));
        let share = MAKING / UNIT / cores.min(MAKING / UNIT);
        Self { transcode, future, limit, share, gate, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// True if a copy of this object may be created, as far as is known now.
    fn may_make(&self, name: Name) -> bool {
        let state = self.state();
        let is_open = match self.transcode {
            Transcode::Never => false,
            Transcode::Auto => state.verdict.as_ref().is_none_or(|verdict| verdict.keeps),
            Transcode::Always => true,
        };
        is_open && !state.refused.contains(&name)
    }

    #[cfg(test)]
    pub fn refused(&self) -> usize {
        self.state().refused.len()
    }

    #[cfg(test)]
    pub fn decide(&self, keeps: bool) {
        self.state().verdict = Some(Verdict { keeps, why: String::new() });
    }

    fn refuse(&self, name: Name) {
        self.state().refused.insert(name);
    }

    /// Number of permits for an object, based on its probable decompressed size. `None` if the object is too large.
    fn weight(&self, codec: Codec, stored: &[u8]) -> Option<u32> {
        let hint = stored.last_chunk().filter(|_| codec == Codec::Gzip).map(|last| gzip_size_hint(*last));
        // For a gzip file of several members, the hint is only the size of the last member, which may be empty.
        let inflated = hint.filter(|&hint| hint >= stored.len() as u64).unwrap_or(MAX_INFLATED);
        (inflated <= MAX_INFLATED).then(|| inflated.div_ceil(UNIT).max(self.share) as u32)
    }

    /// Creates the transposed copy of an object, which takes tens of milliseconds. Returns `None` if the copy is not to
    /// be cached.
    fn made(&self, name: Name, codec: Codec, stored: &[u8], check: GzipCheck) -> Option<Vec<u8>> {
        let made = self.tried(codec, stored, check);
        let fits = made.as_ref().is_some_and(|(planes, _)| planes.len() <= stored.len());
        if !fits {
            self.refuse(name);
        }
        if !self.decides(made.as_ref().map(|(_, trial)| *trial)) {
            return None;
        }
        made.map(|(planes, _)| planes).filter(|_| fits)
    }

    /// Creates the transposed copy of an object. Verifies all checksums, and reads the copy back. While no decision is
    /// made, also measures the cost of both forms. Returns `None` if the object cannot be decompressed; the object's
    /// reader will report the error.
    fn tried(&self, codec: Codec, stored: &[u8], check: GzipCheck) -> Option<(Vec<u8>, Trial)> {
        let (mut content, mut again) = (Vec::new(), Vec::new());
        decompress_into(codec, stored, &mut content, MAX_INFLATED, "").ok()?;
        let known = self.state().form;
        let form = known.or_else(|| Planes::best(&content).ok())?;
        self.state().form = Some(form);
        let planes = transpose(&content, form).ok()?;
        restore_transposed(&planes, &mut again, MAX_INFLATED, "").ok().filter(|()| again == content)?;
        let (mut inflated, mut read) = (Duration::MAX, Duration::MAX);
        let turns = if self.is_undecided() { TURNS } else { 0 };
        for _ in 0..turns {
            let watch = Stopwatch::start();
            decompress_into_checked(codec, stored, &mut content, MAX_INFLATED, check, "").ok()?;
            inflated = inflated.min(watch.elapsed());
            let watch = Stopwatch::start();
            restore_transposed(&planes, &mut again, MAX_INFLATED, "").ok()?;
            read = read.min(watch.elapsed());
        }
        let trial = Trial { inflated, read, stored: stored.len() as u64, planes: planes.len() as u64 };
        Some((planes, trial))
    }

    fn is_undecided(&self) -> bool {
        self.transcode == Transcode::Auto && self.state().verdict.is_none()
    }

    /// Adds a trial. Returns whether to cache objects as transposed copies, according to the trials so far.
    fn decides(&self, trial: Option<Trial>) -> bool {
        if self.transcode != Transcode::Auto {
            return self.transcode == Transcode::Always;
        }
        let size = |(object, range): (ObjectRef, ByteRange)| self.future.keeps(&object.key, &[range]);
        // Computed before the state is locked, because the computation may take a while.
        let set = if self.is_undecided() {
            self.future.stretches().filter_map(size).map(|keeps| keeps.size).sum()
        } else {
            0
        };
        let mut state = self.state();
        if state.verdict.is_none() {
            state.trials.push(trial);
            if state.trials.len() >= TRIALS {
                state.verdict = Some(Verdict::of(&state.trials, set, self.limit));
            }
        }
        state.verdict.as_ref().is_some_and(|verdict| verdict.keeps)
    }
}

impl NodeCache {
    /// Returns one sentence: whether and why objects are cached as transposed copies. Returns `None` before the
    /// decision.
    pub fn transcoding(&self) -> Option<String> {
        self.transcoder.state().verdict.as_ref().map(Verdict::to_string)
    }

    /// Returns the transposed copy of an object if a valid copy is cached. The caller converts it back with
    /// [`restore_transposed`]. A corrupt copy is removed.
    pub async fn in_planes(&self, object: &ObjectRef) -> Result<Option<Bytes>> {
        let name = Name::of(self.root_url(), object, Form::Planes);
        let Some(name) = name.filter(|_| self.transcoder.transcode != Transcode::Never) else { return Ok(None) };
        let planes = self.entry(name, object, Form::Planes, |entry, buffers| entry.read_all(buffers)).await?;
        if let Some(planes) = &planes {
            self.hit(name, &whole(object), planes.len());
        }
        Ok(planes)
    }

    /// Creates the transposed copy of an object whose stored bytes are in memory, and caches the copy in place of the
    /// stored bytes. Returns `None` if a copy does not pay off, if there is no space, or if another process is creating
    /// it. `check` states how the object's reader verifies gzip's own checksum; the measurements verify it in the same
    /// way.
    pub async fn keep_planes(
        &self,
        object: &ObjectRef,
        codec: Codec,
        stored: &Bytes,
        check: GzipCheck,
    ) -> Result<Option<Bytes>> {
        let Some(name) = Name::of(self.root_url(), object, Form::Planes) else { return Ok(None) };
        let transcoder = self.transcoder.clone();
        if !transcoder.may_make(name) {
            return Ok(None);
        }
        let Some(weight) = transcoder.weight(codec, stored) else {
            transcoder.refuse(name);
            transcoder.decides(None);
            return Ok(None);
        };
        // Only a few objects are transcoded at the same time. This limit slows down only the first epoch.
        let gate = transcoder.gate.clone();
        let permit = gate.acquire_many_owned(weight).await;
        let permit = permit.map_err(|error| Error::bug(format!("the node cache: {error}")))?;
        if !transcoder.may_make(name) {
            return Ok(None);
        }
        let folder = self.folder.clone();
        let (turn, is_there) = blocking(move || (folder.turn(name), folder.find(name).is_some())).await?;
        let turn = self.doubt(turn).flatten();
        if is_there {
            turn.inspect(EntryLock::discard);
            let found = self.in_planes(object).await?;
            if found.is_some() {
                self.drop_stored(object).await?;
            }
            return Ok(found);
        }
        let Some(turn) = turn else { return Ok(None) };
        let bytes = stored.clone();
        let (made, _permit) = blocking(move || (transcoder.made(name, codec, &bytes, check), permit)).await?;
        let Some(made) = made.map(Bytes::from) else {
            turn.discard();
            return Ok(None);
        };
        let mut room = self.room(whole(object), disk_bytes(made.len() as u64)).await?;
        if room.is_none() {
            // Remove the stored entry and try again. The stored entry is at least as large as the copy, and its bytes
            // are in memory.
            self.drop_stored(object).await?;
            room = self.room(whole(object), disk_bytes(made.len() as u64)).await?;
        }
        let Some(room) = room else {
            turn.discard();
            self.transcoder.refuse(name);
            return Ok(None);
        };
        self.write_planes(name, object, stored.len() as u64, made.clone(), turn, room).await?;
        Ok(Some(made))
    }

    /// Writes the transposed copy, and removes the object's stored entry.
    async fn write_planes(
        &self,
        name: Name,
        object: &ObjectRef,
        size: u64,
        planes: Bytes,
        turn: EntryLock,
        room: Admission,
    ) -> Result<()> {
        let meta = Meta {
            key: object.key.clone(),
            size,
            version: object.version.clone(),
            digests: Vec::new(),
            encoding: None,
            modified_s: None,
        };
        let what = whole(object);
        let (root, victims, metrics) = (self.root_url().clone(), self.victims.clone(), self.metrics.clone());
        let stored = self.stored(object);
        let kept = blocking(move || {
            let keep = || {
                let mut writer = Writer::new(turn.file(), planes.len() as u64);
                writer.write(0, &planes)?;
                writer.finish(&root, &meta, Form::Planes)?;
                room.keep(&turn)
            };
            keep().inspect_err(|_| turn.discard())?;
            // These updates are part of one blocking call, so they all run even if the caller's future is dropped.
            metrics.count(Metric::CacheTranscodes);
            victims.note(name, &what);
            victims.forget_removed(stored)
        })
        .await?;
        self.doubt(kept);
        Ok(())
    }

    /// Removes the object's stored entry.
    async fn drop_stored(&self, object: &ObjectRef) -> Result<()> {
        let (victims, stored) = (self.victims.clone(), self.stored(object));
        let removed = blocking(move || victims.forget_removed(stored)).await?;
        self.doubt(removed);
        Ok(())
    }

    fn stored(&self, object: &ObjectRef) -> Option<Name> {
        Name::of(self.root_url(), object, Form::Stored(ByteRange::WHOLE))
    }

    fn root_url(&self) -> &Url {
        self.inner.root()
    }
}

fn whole(object: &ObjectRef) -> Extent {
    Extent { key: object.key.clone(), range: ByteRange::WHOLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_weighs_time_and_bytes() {
        let trial = |read: u64, planes: u64| {
            let (inflated, read) = (Duration::from_millis(10), Duration::from_millis(read));
            Some(Trial { inflated, read, stored: 1000, planes })
        };
        let of = |tried: &[Option<Trial>], limit: u64| Verdict::of(tried, 1_000_000, limit);
        let paying = of(&[trial(5, 700), trial(6, 900), None, trial(4, 800)], 900_000);
        assert!(paying.keeps);
        assert_eq!(
            paying.to_string(),
            "cached as transposed copies (5.00 ms to read a transposed copy, 10.00 ms to decompress a stored object; size ratio 0.80)"
        );
        assert!(!of(&[trial(9, 500)], 900_000).keeps);
        assert!(!of(&[trial(2, 1001)], 2_000_000).keeps);
        let full = of(&[trial(5, 800)], 800_000);
        assert!(!full.keeps && full.why.contains("but the limit is 800,000"), "{full}");
        let none = of(&[None; TRIALS], 900_000);
        assert!(!none.keeps && none.why.contains("each of the first 3"), "{none}");
    }
}
