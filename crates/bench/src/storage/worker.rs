// SPDX-License-Identifier: Apache-2.0
//! Runs one benchmark thread of a storage phase.

use std::os::fd::{AsFd, OwnedFd};

use penstock_dataset::order::Permutation;
use penstock_types::{Error, Result, with_separators};
use rustix::fs::{Mode, OFlags};

use super::blocks::Walk;
use super::meter::Meter;
use super::pwrite::{Open, Plain};
use super::spec::{Engine, Pattern, Phase};
use super::target::Target;
use super::tree::{self, Branch, failed, file_number};
use super::uring::Ring;

enum Sender {
    Plain(Plain),
    Ring(Box<Ring>),
}

impl Sender {
    fn run(&mut self, meter: &mut Meter<'_>, file: &Open<'_>, walk: &mut Walk) -> Result<()> {
        match self {
            Self::Plain(plain) => plain.run(meter, file, walk),
            Self::Ring(ring) => ring.run(meter, file, walk),
        }
    }
}

enum Ground {
    Tree(Branch),
    Shared(OwnedFd, u64),
}

/// A benchmark thread that is ready to start.
pub(super) struct Worker<'a> {
    meter: Meter<'a>,
    number: u32,
    sender: Option<Sender>,
    ground: Ground,
}

impl<'a> Worker<'a> {
    /// Prepares memory, rings and folders, so that the measured time does not include this work.
    pub(super) fn new(meter: Meter<'a>, number: u32) -> Result<Self> {
        let shared = meter.shared;
        let spec = &shared.spec;
        let sender = match (shared.phase, spec.engine) {
            (Phase::Write | Phase::Read, Engine::Threads) => Some(Sender::Plain(Plain::new(&meter, number)?)),
            (Phase::Write | Phase::Read, Engine::IoUring) => Some(Sender::Ring(Box::new(Ring::new(&meter, number)?))),
            _ => None,
        };
        let ground = match shared.target {
            Target::Tree => Ground::Tree(Branch::new(&spec.path, number)?),
            Target::Shared(size) => {
                let place = spec.path.display().to_string();
                let flags = flags(&meter) | OFlags::CLOEXEC;
                let file = rustix::fs::open(&spec.path, flags, Mode::empty()).map_err(|errno| failed(&place, errno))?;
                Ground::Shared(file, size)
            }
        };
        Ok(Self { meter, number, sender, ground })
    }

    /// Runs the phase from the common start until this worker has ended.
    pub(super) fn run(mut self, start: std::time::Instant) -> Result<Meter<'a>> {
        self.meter.begin_at(start);
        let (phase, repeat) = (self.meter.shared.phase, self.meter.shared.spec.repeat);
        let mut round = 0;
        loop {
            match (&mut self.ground, &mut self.sender) {
                (Ground::Shared(file, size), Some(sender)) => {
                    shared_file(&mut self.meter, sender, file, *size, self.number, round)?;
                }
                (Ground::Tree(branch), Some(sender)) => files(&mut self.meter, sender, branch, self.number, round)?,
                (Ground::Tree(branch), None) => metadata(&mut self.meter, branch, phase)?,
                (Ground::Shared(..), None) => return Err(Error::bug("a metadata phase on a shared file")),
            }
            round += 1;
            if !repeat || self.sender.is_none() || self.meter.is_over() {
                return Ok(self.meter);
            }
        }
    }
}

fn flags(meter: &Meter<'_>) -> OFlags {
    let direct = if meter.shared.spec.direct { OFlags::DIRECT } else { OFlags::empty() };
    let access = if meter.shared.phase == Phase::Write { OFlags::WRONLY } else { OFlags::RDONLY };
    access | direct
}

/// Returns a random block order, which differs for each file and each round. Returns `None` for the sequential pattern.
fn order(meter: &Meter<'_>, size: u64, round: u64, number: u64) -> Option<Permutation> {
    let spec = &meter.shared.spec;
    let count = size.div_ceil(spec.block_size);
    (spec.pattern == Pattern::Random).then(|| Permutation::keyed(count, spec.seed, round, number))
}

fn shared_file(
    meter: &mut Meter<'_>,
    sender: &mut Sender,
    file: &OwnedFd,
    size: u64,
    worker: u32,
    round: u64,
) -> Result<()> {
    let shared = meter.shared;
    let spec = &shared.spec;
    let began = meter.last();
    let place = || spec.path.display().to_string();
    let open = Open { fd: file.as_fd(), number: 0, place: &place };
    let order = order(meter, size, round, 0);
    let mut walk = Walk::share(size, spec.block_size, order, u64::from(worker), u64::from(spec.threads));
    sender.run(meter, &open, &mut walk)?;
    if spec.fsync && shared.phase == Phase::Write {
        tree::sync(file, &place)?;
    }
    if walk.is_done() {
        meter.entry_done(began);
    }
    Ok(())
}

fn files(meter: &mut Meter<'_>, sender: &mut Sender, branch: &mut Branch, worker: u32, round: u64) -> Result<()> {
    let shared = meter.shared;
    let spec = &shared.spec;
    let is_write = shared.phase == Phase::Write;
    // Only the first round truncates, so that a file stays complete even if the phase ends during a later rewrite.
    let flags = match (is_write, round) {
        (true, 0) => flags(meter) | OFlags::CREATE | OFlags::TRUNC,
        (true, _) => flags(meter) | OFlags::CREATE,
        (false, _) => flags(meter),
    };
    for directory in 0..spec.directories {
        let mut folder = branch.folder(directory)?;
        for file in 0..spec.files {
            if meter.is_over() {
                return Ok(());
            }
            let number = file_number(spec, worker, directory, file);
            let began = meter.last();
            let fd = folder.open(file, flags)?;
            meter.tick();
            let folder = std::cell::RefCell::new(&mut folder);
            let place = || folder.borrow_mut().place(file);
            let mut walk = Walk::whole(spec.file_size, spec.block_size, order(meter, spec.file_size, round, number));
            sender.run(meter, &Open { fd: fd.as_fd(), number, place: &place }, &mut walk)?;
            if spec.fsync && is_write {
                tree::sync(&fd, &place)?;
            }
            drop(fd);
            if walk.is_done() {
                meter.entry_done(began);
            }
        }
    }
    Ok(())
}

fn metadata(meter: &mut Meter<'_>, branch: &mut Branch, phase: Phase) -> Result<()> {
    let shared = meter.shared;
    let spec = &shared.spec;
    let call = |meter: &mut Meter<'_>, work: &mut dyn FnMut() -> Result<()>| -> Result<bool> {
        let Some(begun) = meter.begin() else { return Ok(false) };
        work()?;
        meter.call_done(begun);
        Ok(true)
    };
    match phase {
        Phase::Mkdirs => {
            // The worker's own folder is not part of the requested tree, so create it before the measured time.
            branch.make(None)?;
            meter.tick();
            for directory in 0..spec.directories {
                if !call(meter, &mut || branch.make(Some(directory)))? {
                    return Ok(());
                }
            }
        }
        Phase::Rmdirs => {
            for directory in 0..spec.directories {
                if !call(meter, &mut || branch.remove(Some(directory)))? {
                    return Ok(());
                }
            }
            branch.remove(None)?;
        }
        Phase::Stat | Phase::Delete => {
            for directory in 0..spec.directories {
                let mut folder = branch.folder(directory)?;
                for file in 0..spec.files {
                    let went_on = call(meter, &mut || {
                        if phase == Phase::Delete {
                            return folder.delete(file);
                        }
                        let size = folder.stat(file)?;
                        if size == spec.file_size {
                            return Ok(());
                        }
                        let problem = format!(
                            "has {} bytes, but {} were written",
                            with_separators(size),
                            with_separators(spec.file_size)
                        );
                        Err(Error::corrupt(folder.place(file), problem))
                    })?;
                    if !went_on {
                        return Ok(());
                    }
                }
            }
        }
        Phase::Write | Phase::Read => return Err(Error::bug("a data phase without an engine")),
    }
    Ok(())
}
