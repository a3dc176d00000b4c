// SPDX-License-Identifier: Apache-2.0
//! Streaming decoder for LZ4 frames. `lz4_flex` reads frames only from a blocking reader, so this module parses the
//! frames and uses only the block decoder of `lz4_flex`. Verifies the header, block and content checksums. Rejects
//! dictionaries and legacy frames.

use lz4_flex::block::decompress_into_with_dict;
use penstock_types::{Error, Result, with_separators};
use xxhash_rust::xxh32::{Xxh32, xxh32};

use crate::output::OutputWindow;

pub(crate) const MAGIC: u32 = 0x184d_2204;
const LEGACY: u32 = 0x184c_2102;
pub(crate) const SKIPPABLE: u32 = 0x184d_2a50;
/// Maximum distance of a back-reference in a linked block.
const WINDOW: usize = 64 << 10;

/// Structure that the next bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Magic,
    SkipLen,
    Skip {
        left: u32,
    },
    /// The FLG and BD bytes.
    Flags,
    /// The optional content size and the header checksum.
    Descriptor,
    BlockLen,
    /// A block, followed by its checksum if the frame has block checksums.
    Block {
        plain: bool,
    },
    ContentSum,
}

#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    flags: [u8; 2],
    block_max: usize,
    independent: bool,
    block_sums: bool,
    content_sum: bool,
    content_size: Option<u64>,
}

pub(crate) struct Lz4Stream {
    state: State,
    /// Number of bytes in the current structure.
    need: usize,
    /// Bytes received so far of a structure that is split between inputs.
    held: Vec<u8>,
    frame: Frame,
    count: u64,
    made: u64,
    sum: Xxh32,
    /// The last bytes of output, to which linked blocks refer: at most twice `WINDOW`.
    window: Vec<u8>,
    block: Vec<u8>,
}

impl Lz4Stream {
    /// Creates a decoder that continues after `frames` whole frames.
    pub(crate) fn behind(frames: u64) -> Self {
        Self {
            state: State::Magic,
            need: 4,
            held: Vec::new(),
            frame: Frame::default(),
            count: frames,
            made: 0,
            sum: Xxh32::new(0),
            window: Vec::new(),
            block: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, mut input: &[u8], outlet: &mut OutputWindow<'_>) -> Result<()> {
        while !input.is_empty() {
            if let State::Skip { left } = self.state {
                let used = input.len().min(left as usize);
                match left - used as u32 {
                    0 => self.expect(State::Magic, 4),
                    left => self.state = State::Skip { left },
                }
                outlet.took(used);
                input = &input[used..];
                continue;
            }
            let used = input.len().min(self.need - self.held.len());
            outlet.took(used);
            let (taken, rest) = input.split_at(used);
            input = rest;
            if self.held.is_empty() && used == self.need {
                self.take(taken, outlet)?;
            } else {
                self.held.extend_from_slice(taken);
                if self.held.len() == self.need {
                    let whole = std::mem::take(&mut self.held);
                    self.take(&whole, outlet)?;
                    // Keep the capacity for the next structure that is split between inputs.
                    self.held = whole;
                    self.held.clear();
                }
            }
        }
        Ok(())
    }

    fn expect(&mut self, state: State, need: usize) {
        (self.state, self.need) = (state, need);
    }

    fn bad(&self, outlet: &OutputWindow<'_>, reason: String) -> Error {
        outlet.corrupt(format!(
            "is damaged in lz4 frame {} before stored byte {}: {reason} (inflated {} bytes so far)",
            self.count,
            with_separators(outlet.bytes_in()),
            with_separators(outlet.bytes_out())
        ))
    }

    /// Processes a complete structure of `need` bytes.
    fn take(&mut self, bytes: &[u8], outlet: &mut OutputWindow<'_>) -> Result<()> {
        match self.state {
            State::Magic => self.magic(word(bytes), outlet),
            State::SkipLen => {
                match word(bytes) {
                    0 => self.expect(State::Magic, 4),
                    left => self.state = State::Skip { left },
                }
                Ok(())
            }
            State::Skip { .. } => Ok(()),
            State::Flags => self.flags(bytes, outlet),
            State::Descriptor => self.descriptor(bytes, outlet),
            State::BlockLen => self.block_len(word(bytes), outlet),
            State::Block { plain } => self.block(bytes, plain, outlet),
            State::ContentSum => {
                let (is, want) = (self.sum.digest(), word(bytes));
                if is != want {
                    return Err(self.bad(outlet, format!("content checksum is {is:#010x}, want {want:#010x}")));
                }
                self.expect(State::Magic, 4);
                Ok(())
            }
        }
    }

    fn magic(&mut self, magic: u32, outlet: &OutputWindow<'_>) -> Result<()> {
        match magic {
            MAGIC => {
                self.count += 1;
                self.expect(State::Flags, 2);
                Ok(())
            }
            magic if magic & !0xf == SKIPPABLE => {
                // Skippable frames count too: an object with only such frames is valid and empty.
                self.count += 1;
                self.expect(State::SkipLen, 4);
                Ok(())
            }
            LEGACY => {
                Err(outlet.corrupt("is a legacy LZ4 frame, which has no checksum and is not supported".to_owned()))
            }
            other if self.count == 0 => {
                Err(outlet.corrupt(format!("is not lz4: it begins with {other:#010x} (want {MAGIC:#010x})")))
            }
            other => Err(outlet.corrupt(format!(
                "has bytes after lz4 frame {} that are not lz4 (before stored byte {}: {other:#010x})",
                self.count,
                with_separators(outlet.bytes_in())
            ))),
        }
    }

    fn flags(&mut self, bytes: &[u8], outlet: &OutputWindow<'_>) -> Result<()> {
        let (flg, bd) = (bytes[0], bytes[1]);
        if flg >> 6 != 1 || flg & 2 != 0 || bd & 0x8f != 0 || bd >> 4 < 4 {
            return Err(self.bad(outlet, format!("unknown version (flags {flg:#04x} {bd:#04x})")));
        }
        if flg & 1 != 0 {
            return Err(self.bad(outlet, "a dictionary is required, which is not supported".to_owned()));
        }
        self.frame = Frame {
            flags: [flg, bd],
            block_max: 1 << (8 + 2 * (bd >> 4)),
            independent: flg & 0x20 != 0,
            block_sums: flg & 0x10 != 0,
            content_sum: flg & 4 != 0,
            content_size: None,
        };
        self.expect(State::Descriptor, if flg & 8 != 0 { 9 } else { 1 });
        Ok(())
    }

    fn descriptor(&mut self, bytes: &[u8], outlet: &OutputWindow<'_>) -> Result<()> {
        let (sizes, sum) = bytes.split_at(bytes.len() - 1);
        let mut hash = Xxh32::new(0);
        hash.update(&self.frame.flags);
        hash.update(sizes);
        let is = (hash.digest() >> 8) as u8;
        if is != sum[0] {
            return Err(self.bad(outlet, format!("header checksum is {is:#04x}, want {:#04x}", sum[0])));
        }
        self.frame.content_size = sizes.first_chunk::<8>().map(|size| u64::from_le_bytes(*size));
        self.made = 0;
        self.sum.reset(0);
        self.window.clear();
        self.expect(State::BlockLen, 4);
        Ok(())
    }

    fn block_len(&mut self, word: u32, outlet: &OutputWindow<'_>) -> Result<()> {
        if word == 0 {
            if let Some(want) = self.frame.content_size
                && want != self.made
            {
                let reason = format!("content is {} bytes, want {}", with_separators(self.made), with_separators(want));
                return Err(self.bad(outlet, reason));
            }
            match self.frame.content_sum {
                true => self.expect(State::ContentSum, 4),
                false => self.expect(State::Magic, 4),
            }
            return Ok(());
        }
        let len = (word & 0x7fff_ffff) as usize;
        if len > self.frame.block_max {
            let reason = format!("block is {} bytes, want at most {}", len, self.frame.block_max);
            return Err(self.bad(outlet, reason));
        }
        self.expect(State::Block { plain: word >> 31 == 1 }, len + if self.frame.block_sums { 4 } else { 0 });
        if self.need == 0 {
            // An uncompressed block of size zero is complete without further bytes.
            self.expect(State::BlockLen, 4);
        }
        Ok(())
    }

    fn block(&mut self, bytes: &[u8], plain: bool, outlet: &mut OutputWindow<'_>) -> Result<()> {
        let (data, sum) = bytes.split_at(bytes.len() - if self.frame.block_sums { 4 } else { 0 });
        if self.frame.block_sums {
            let (is, want) = (xxh32(data, 0), word(sum));
            if is != want {
                return Err(self.bad(outlet, format!("block checksum is {is:#010x}, want {want:#010x}")));
            }
        }
        let mut block = std::mem::take(&mut self.block);
        let made = if plain {
            data
        } else {
            // One compressed byte expands to at most 255 bytes. A small block in a frame with a large maximum block
            // size therefore does not need 4 MiB of zeroed memory.
            let most = data.len().saturating_mul(255).min(self.frame.block_max);
            if block.len() < most {
                block.resize(most, 0);
            }
            let room = &mut block[..most];
            let window = &self.window[self.window.len().saturating_sub(WINDOW)..];
            let len =
                decompress_into_with_dict(data, room, window).map_err(|error| self.bad(outlet, error.to_string()))?;
            &room[..len]
        };
        self.made += made.len() as u64;
        if self.frame.content_sum {
            self.sum.update(made);
        }
        outlet.emit(made)?;
        if !self.frame.independent {
            self.remember(made);
        }
        self.block = block;
        self.expect(State::BlockLen, 4);
        Ok(())
    }

    fn remember(&mut self, made: &[u8]) {
        // Trim the window only when it reaches twice its size. Otherwise a hostile stream of one-byte blocks would move
        // 64 KiB for each block.
        if self.window.len() + made.len() > 2 * WINDOW {
            self.window.drain(..self.window.len().saturating_sub(WINDOW.saturating_sub(made.len())));
        }
        self.window.extend_from_slice(&made[made.len().saturating_sub(WINDOW)..]);
    }

    /// Returns the number of frames that have begun, including skippable frames.
    pub(crate) fn frames(&self) -> u64 {
        self.count
    }

    /// Returns the name of the structure that would be incomplete if the stream ended here, if any.
    pub(crate) fn unfinished(&self) -> Option<String> {
        match self.state {
            State::Magic if self.held.is_empty() && self.count > 0 => None,
            State::Magic => Some(format!("the header of lz4 frame {}", self.count + 1)),
            _ => Some(format!("lz4 frame {}", self.count)),
        }
    }
}

/// Reads the little-endian 32-bit word at the start of `bytes`, which has at least four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk::<4>().map_or(0, |four| u32::from_le_bytes(*four))
}
