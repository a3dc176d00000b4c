// SPDX-License-Identifier: Apache-2.0
//! Compressed objects kept in planes: inflated once, and written as what is cheaper to read than to inflate again.
//!
//! Owns when that is done, which is measured, and the copies. Every doubt ends in the bytes as stored: a copy that does
//! not come about costs later epochs what they cost without it.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use penstock_codec::{Codec, Planes, from_planes, inflate_into, to_planes};
use penstock_store::{Meta, ObjectRef};
use penstock_types::{ByteRange, Error, Metric, Result, Stopwatch, Url, grouped};
use tokio::sync::Semaphore;

use super::entry::{Entry, Form, Name, Writer, disk_bytes};
use super::folder::Turn;
use super::{Admitted, Future, NodeCache, Stretch, blocking};

/// Objects that are measured before `Auto` decides, and how often each is read both ways: the quickest counts.
const TRIALS: usize = 3;
const TURNS: usize = 3;

/// Of the time that inflating takes, the most that reading planes may take to be worth a copy.
const WORTH: f64 = 0.8;

/// Of an object's stored bytes, the most that its copy may take: what is read from the disk in every epoch to come.
const MOST_LARGER: f64 = 1.5;

/// Objects in the making at a time, and the most that each may inflate to: their memory is no part of a feed's budget.
const AT_ONCE: usize = 2;
const MOST_INFLATED: u64 = 64 << 20;

/// When compressed objects are kept in planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transcode {
    /// Not at all.
    #[default]
    Never,
    /// Where the first objects say that it pays.
    Auto,
    /// All that do not grow beyond measure.
    Always,
}

impl FromStr for Transcode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "never" => Ok(Self::Never),
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            other => Err(Error::config("transcode", format!("`{other}` is none of never, auto, always"))),
        }
    }
}

/// One object, read both ways.
#[derive(Debug, Clone, Copy)]
struct Trial {
    inflated: Duration,
    read: Duration,
    stored: u64,
    planes: u64,
}

/// What was decided, and why.
#[derive(Debug, Clone)]
struct Verdict {
    keeps: bool,
    why: String,
}

impl Verdict {
    /// Of `trials` of a set of `set` stored bytes under a limit of `limit` bytes.
    fn of(trials: &[Trial], set: u64, limit: u64) -> Self {
        let sum = |of: fn(&Trial) -> f64| trials.iter().map(of).sum::<f64>();
        let inflated = sum(|trial| trial.inflated.as_secs_f64());
        let read = sum(|trial| trial.read.as_secs_f64());
        let ratio = sum(|trial| trial.planes as f64) / sum(|trial| trial.stored as f64).max(1.0);
        let need = (set as f64 * ratio) as u64;
        let each = |seconds: f64| seconds / trials.len().max(1) as f64 * 1e3;
        let measured = format!(
            "{:.2} ms to read an object in planes, {:.2} ms to inflate it as stored; {ratio:.2} times its bytes",
            each(read),
            each(inflated)
        );
        let (keeps, because) = if ratio > MOST_LARGER {
            (false, format!("kept as stored, for more than {MOST_LARGER} times the bytes is too much"))
        } else if disk_bytes(need) > limit {
            (false, format!("kept as stored, for {} bytes do not fit below {}", grouped(need), grouped(limit)))
        } else if read > WORTH * inflated {
            (false, "kept as stored, for it would gain too little".to_owned())
        } else {
            (true, "kept in planes".to_owned())
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
    trials: Vec<Trial>,
    /// As it suits the first object.
    form: Option<Planes>,
    verdict: Option<Verdict>,
}

/// What is known of this dataset's objects in planes.
#[derive(Debug)]
pub(super) struct Transcoder {
    transcode: Transcode,
    limit: u64,
    future: Arc<dyn Future>,
    gate: Arc<Semaphore>,
    state: Mutex<State>,
}

impl Transcoder {
    pub fn new(transcode: Transcode, future: Arc<dyn Future>, limit: u64) -> Self {
        Self { transcode, limit, future, gate: Arc::new(Semaphore::new(AT_ONCE)), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False once it is known that nothing is kept in planes.
    fn is_open(&self) -> bool {
        self.transcode == Transcode::Always || self.state().verdict.as_ref().is_none_or(|verdict| verdict.keeps)
    }

    /// The object in planes, if it is to be kept so. Takes tens of milliseconds.
    fn made(&self, codec: Codec, stored: &[u8]) -> Option<Vec<u8>> {
        // What does not inflate is its reader's to judge; what is damaged is not copied: all checksums are looked at.
        let mut content = Vec::new();
        inflate_into(codec, stored, &mut content, MOST_INFLATED, "").ok()?;
        let known = self.state().form;
        let form = known.or_else(|| Planes::best(&content).ok())?;
        self.state().form = Some(form);
        let planes = to_planes(&content, form).ok()?;
        if self.transcode == Transcode::Auto && !self.decided(codec, stored, &planes, content)? {
            return None;
        }
        (planes.len() as f64 <= MOST_LARGER * stored.len() as f64).then_some(planes)
    }

    /// What was decided, if anything was; measures `stored` where it was not.
    fn decided(&self, codec: Codec, stored: &[u8], planes: &[u8], mut content: Vec<u8>) -> Option<bool> {
        if let Some(verdict) = &self.state().verdict {
            return Some(verdict.keeps);
        }
        let mut again = Vec::new();
        let (mut inflated, mut read) = (Duration::MAX, Duration::MAX);
        for _ in 0..TURNS {
            let watch = Stopwatch::start();
            inflate_into(codec, stored, &mut content, MOST_INFLATED, "").ok()?;
            inflated = inflated.min(watch.elapsed());
            let watch = Stopwatch::start();
            from_planes(planes, &mut again, MOST_INFLATED, "").ok()?;
            read = read.min(watch.elapsed());
        }
        let mut state = self.state();
        state.trials.push(Trial { inflated, read, stored: stored.len() as u64, planes: planes.len() as u64 });
        if state.trials.len() >= TRIALS && state.verdict.is_none() {
            let size = |(object, range): (ObjectRef, ByteRange)| self.future.keeps(&object.key, &[range]);
            let set = self.future.stretches().filter_map(size).map(|keeps| keeps.size).sum();
            state.verdict = Some(Verdict::of(&state.trials, set, self.limit));
        }
        state.verdict.as_ref().map(|verdict| verdict.keeps)
    }
}

impl NodeCache {
    /// What was decided of objects in planes, and why, in one sentence; `None` where nothing has been yet.
    pub fn transcoding(&self) -> Option<String> {
        self.transcoder.state().verdict.as_ref().map(Verdict::to_string)
    }

    /// The object in planes ([`from_planes`] gives its content), if there is a sound copy; a broken one is taken away.
    pub async fn in_planes(&self, object: &ObjectRef) -> Result<Option<Bytes>> {
        let name = Name::of(self.root_url(), object, Form::Planes);
        let Some(name) = name.filter(|_| self.transcoder.transcode != Transcode::Never) else { return Ok(None) };
        let (folder, root, wanted) = (self.folder.clone(), self.root_url().clone(), object.clone());
        let buffers = self.buffers.clone();
        let found = blocking(move || {
            let file = folder.find(name)?;
            let planes = Entry::open(file, &root, &wanted, Form::Planes).and_then(|entry| entry.read_all(&buffers));
            if planes.is_none() {
                // Nothing is lost where it cannot be removed: it is never believed.
                let _ = folder.remove(name);
            }
            Some(planes)
        })
        .await?;
        match found {
            None => Ok(None),
            Some(None) => {
                self.metrics.count(Metric::CacheBroken);
                Ok(None)
            }
            Some(Some(planes)) => {
                self.metrics.count(Metric::CacheHits);
                self.metrics.add(Metric::CacheBytes, planes.len() as u64);
                self.victims.note(name, &whole(object));
                Ok(Some(planes))
            }
        }
    }

    /// Makes the copy in planes of an object whose stored bytes are at hand, and keeps it in their place; `None` where that
    /// does not pay, and where there is no room.
    pub async fn keep_planes(&self, object: &ObjectRef, codec: Codec, stored: &Bytes) -> Result<Option<Bytes>> {
        let Some(name) = Name::of(self.root_url(), object, Form::Planes) else { return Ok(None) };
        if self.transcoder.transcode == Transcode::Never {
            return Ok(None);
        }
        // Each waits its turn, so that the first epoch alone is slower and all later ones are alike.
        let gate = self.transcoder.gate.clone();
        let permit = gate.acquire_owned().await.map_err(|error| Error::bug(format!("the node cache: {error}")))?;
        if !self.transcoder.is_open() {
            return Ok(None);
        }
        let (transcoder, bytes) = (self.transcoder.clone(), stored.clone());
        let made = blocking(move || {
            let made = transcoder.made(codec, &bytes);
            drop(permit);
            made.map(Bytes::from)
        });
        let Some(made) = made.await? else { return Ok(None) };
        let folder = self.folder.clone();
        let turn = blocking(move || folder.turn(name)).await?;
        let Some(Some(turn)) = self.doubt(turn) else { return Ok(Some(made)) };
        let Some(room) = self.room(whole(object), disk_bytes(made.len() as u64)).await? else {
            turn.discard();
            return Ok(None);
        };
        self.write_planes(name, object, stored.len() as u64, made.clone(), turn, room).await?;
        Ok(Some(made))
    }

    /// Writes the copy, and takes away what was kept of the object as stored.
    async fn write_planes(
        &self,
        name: Name,
        object: &ObjectRef,
        size: u64,
        planes: Bytes,
        turn: Turn,
        room: Admitted,
    ) -> Result<()> {
        let meta = Meta {
            key: object.key.clone(),
            size,
            version: object.version.clone(),
            digests: Vec::new(),
            encoding: None,
            modified_s: None,
        };
        let root = self.root_url().clone();
        let kept = blocking(move || {
            let keep = || {
                let mut writer = Writer::new(&turn.file, planes.len() as u64);
                writer.write(0, &planes)?;
                writer.finish(&root, &meta, Form::Planes)?;
                room.keep(&turn)
            };
            keep().inspect_err(|_| turn.discard())
        })
        .await?;
        if self.doubt(kept).is_none() {
            return Ok(());
        }
        self.metrics.count(Metric::CacheTranscodes);
        self.victims.note(name, &whole(object));
        if let Some(stored) = Name::of(self.root_url(), object, Form::Stored(ByteRange::WHOLE)) {
            self.victims.forget(stored);
            let folder = self.folder.clone();
            let removed = blocking(move || folder.remove(stored)).await?;
            self.doubt(removed);
        }
        Ok(())
    }

    fn root_url(&self) -> &Url {
        self.inner.root()
    }
}

fn whole(object: &ObjectRef) -> Stretch {
    Stretch { key: object.key.clone(), range: ByteRange::WHOLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_weighs_time_bytes_and_the_limit() {
        let trial = |read: u64, planes: u64| Trial {
            inflated: Duration::from_millis(10),
            read: Duration::from_millis(read),
            stored: 1000,
            planes,
        };
        let of = |trials: &[Trial], limit: u64| Verdict::of(trials, 1_000_000, limit);
        let paying = of(&[trial(5, 1200), trial(6, 1400), trial(4, 1300)], 2_000_000);
        assert!(paying.keeps);
        assert_eq!(
            paying.to_string(),
            "kept in planes (5.00 ms to read an object in planes, 10.00 ms to inflate it as stored; 1.30 times its bytes)"
        );
        let full = of(&[trial(5, 1300)], 1_250_000);
        assert!(
            !full.keeps && full.why.starts_with("kept as stored, for 1,300,000 bytes do not fit below 1,250,000 (")
        );
        assert!(!of(&[trial(9, 500)], 2_000_000).keeps);
        assert!(!of(&[trial(2, 1600)], 2_000_000).keeps);
    }
}
