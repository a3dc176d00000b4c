// SPDX-License-Identifier: Apache-2.0
//! Synchronous I/O engine. It sends one pread or pwrite at a time, and reads the clock once for each.

use std::os::fd::BorrowedFd;

use penstock_store::{Buffer, BufferPool};
use penstock_types::{Error, Result, with_separators};
use rustix::io::Errno;

use super::blocks::Walk;
use super::meter::Meter;
use super::spec::Phase;
use super::tree::failed;

/// An open file and its number.
pub(super) struct Open<'a> {
    pub(super) fd: BorrowedFd<'a>,
    /// Number of the file, from which the content is generated.
    pub(super) number: u64,
    /// Returns the path of the file, for error messages.
    pub(super) place: &'a dyn Fn() -> String,
}

impl Open<'_> {
    pub(super) fn ended_early(&self, at: u64) -> Error {
        Error::corrupt((self.place)(), format!("ends at byte {}, but more was written", with_separators(at)))
    }

    pub(super) fn differs(&self, at: u64) -> Error {
        Error::corrupt(
            (self.place)(),
            format!("differs from the written content, starting at byte {}", with_separators(at)),
        )
    }
}

/// Returns a block that is filled with content. The block is page-aligned, because O_DIRECT requires it.
pub(super) fn prepared_block(meter: &Meter<'_>) -> Result<Buffer> {
    let taken = BufferPool::of_process().take(meter.shared.spec.block_size as usize);
    let mut block = taken.map_err(|error| Error::from_io("memory for a block", &error))?;
    meter.shared.content.prepare(&mut block);
    Ok(block)
}

/// Synchronous I/O engine of one worker.
#[derive(Debug)]
pub(super) struct Plain {
    block: Buffer,
    serial: u64,
}

impl Plain {
    pub(super) fn new(meter: &Meter<'_>, worker: u32) -> Result<Self> {
        Ok(Self { block: prepared_block(meter)?, serial: u64::from(worker) << 40 })
    }

    pub(super) fn run(&mut self, meter: &mut Meter<'_>, file: &Open<'_>, walk: &mut Walk) -> Result<()> {
        match meter.shared.phase {
            Phase::Write => self.write(meter, file, walk),
            _ => self.read(meter, file, walk),
        }
    }

    fn read(&mut self, meter: &mut Meter<'_>, file: &Open<'_>, walk: &mut Walk) -> Result<()> {
        let verifies = meter.shared.spec.verify.is_some();
        while !walk.is_done()
            && let Some(begun) = meter.begin()
            && let Some((offset, len)) = walk.take()
        {
            let mut done = 0;
            while done < len {
                match rustix::io::pread(file.fd, &mut self.block[done..len], offset + done as u64) {
                    Ok(0) => return Err(file.ended_early(offset + done as u64)),
                    Ok(more) => done += more,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(failed(&(file.place)(), errno)),
                }
            }
            meter.io_done(begun, penstock_types::now(), len as u64);
            if verifies {
                if let Some(at) = meter.shared.content.differs(&self.block[..len], file.number, offset) {
                    return Err(file.differs(at));
                }
                meter.verified_bytes += len as u64;
                meter.tick();
            }
        }
        Ok(())
    }

    fn write(&mut self, meter: &mut Meter<'_>, file: &Open<'_>, walk: &mut Walk) -> Result<()> {
        let exact = meter.shared.spec.verify.is_some();
        while !walk.is_done()
            && let Some(mut begun) = meter.begin()
            && let Some((offset, len)) = walk.take()
        {
            if exact {
                meter.shared.content.fill(&mut self.block[..len], file.number, offset);
                if !meter.is_open() {
                    begun.intended = meter.tick();
                }
            } else {
                self.serial += 1;
                meter.shared.content.touch(&mut self.block[..len], self.serial);
            }
            let mut done = 0;
            while done < len {
                match rustix::io::pwrite(file.fd, &self.block[done..len], offset + done as u64) {
                    Ok(more) => done += more,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(failed(&(file.place)(), errno)),
                }
            }
            meter.io_done(begun, penstock_types::now(), len as u64);
        }
        Ok(())
    }
}
