// SPDX-License-Identifier: Apache-2.0
//! gzip (RFC 1952): a header parser, whole-object decompression with libdeflate, and streaming decompression with
//! zlib-rs.
//!
//! An object may have several members. After the last member, zero bytes are accepted as in gzip(1), because tapes and
//! block devices are padded with zeros. Any other trailing bytes are an error. If libdeflate rejects an object, the
//! stream decoder reads the object again and reports the position and the reason. The fast path therefore needs no
//! error texts.

use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::Crc;
use penstock_types::{Error, Result, with_separators};

use crate::libdeflate::{Outcome, inflate_raw};
use crate::output::{Inflated, OutputWindow, above_limit, reserve};

/// Maximum expansion of one byte by DEFLATE. A trailer that states a larger size is wrong.
pub(crate) const MAX_OF_ONE: u64 = 1032;
/// Trailer size in bytes: CRC-32, and content size modulo 2³².
pub(crate) const TRAILER: usize = 8;
/// Size of the buffer for decompressed bytes on their way to the sink; it fits in the L2 cache.
const STREAM_BUFFER: usize = 128 << 10;

/// How much of gzip's trailer a whole-object decompression verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GzipCheck {
    /// Verifies CRC-32 and size.
    #[default]
    Full,
    /// Verifies only the size, which saves one pass over the content. Use this if the content has its own checksums and
    /// they are verified (TFRecord with `verify_crc`).
    SizeOnly,
}

/// Returns the last four bytes of a gzip object as a number: the size of its last member modulo 2^32. The size is only
/// a hint and must not be trusted.
pub fn gzip_size_hint(last4: [u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(last4))
}

/// Current position in the header of a member.
#[derive(Debug, Clone, Copy)]
enum Field {
    Fixed,
    ExtraLen,
    Extra { left: u16 },
    Name,
    Comment,
    Crc,
    Done,
}

/// Parses the header of a member, which may arrive in pieces of any size. Stores none of the fields.
struct HeaderWalk {
    field: Field,
    bytes: [u8; 10],
    have: usize,
    flags: u8,
    crc: Crc,
}

impl HeaderWalk {
    const HCRC: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    const RESERVED: u8 = 0xe0;

    fn new() -> Self {
        Self { field: Field::Fixed, bytes: [0; 10], have: 0, flags: 0, crc: Crc::new() }
    }

    /// Consumes the header bytes at the start of `input`; returns their number, or an error text.
    fn push(&mut self, input: &[u8]) -> Result<usize, String> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            let used = match self.field {
                Field::Fixed => self.collect(rest, 10),
                Field::ExtraLen | Field::Crc => self.collect(rest, 2),
                Field::Extra { left } => rest.len().min(usize::from(left)),
                Field::Name | Field::Comment => {
                    rest.iter().position(|&byte| byte == 0).map_or(rest.len(), |zero| zero + 1)
                }
                Field::Done => break,
            };
            let taken = &rest[..used];
            if !matches!(self.field, Field::Crc) {
                self.crc.update(taken);
            }
            at += used;
            self.advance(taken)?;
        }
        Ok(at)
    }

    fn done(&self) -> bool {
        matches!(self.field, Field::Done)
    }

    fn collect(&mut self, input: &[u8], want: usize) -> usize {
        let used = input.len().min(want - self.have);
        self.bytes[self.have..self.have + used].copy_from_slice(&input[..used]);
        self.have += used;
        used
    }

    fn advance(&mut self, taken: &[u8]) -> Result<(), String> {
        match self.field {
            Field::Fixed => {
                let magic = self.have.min(2);
                if self.bytes[..magic] != [0x1f, 0x8b][..magic] {
                    let found: Vec<_> = self.bytes[..magic].iter().map(|byte| format!("{byte:02x}")).collect();
                    return Err(format!("begins with {} (want 1f 8b)", found.join(" ")));
                }
                if self.have < 10 {
                    return Ok(());
                }
                if self.bytes[2] != 8 {
                    return Err(format!("uses compression method {} (want 8, DEFLATE)", self.bytes[2]));
                }
                self.flags = self.bytes[3];
                if self.flags & Self::RESERVED != 0 {
                    return Err(format!("sets reserved flags ({:#04x})", self.flags & Self::RESERVED));
                }
                self.enter(Field::ExtraLen);
            }
            Field::ExtraLen if self.have == 2 => {
                match u16::from_le_bytes([self.bytes[0], self.bytes[1]]) {
                    0 => self.enter(Field::Name),
                    left => self.field = Field::Extra { left },
                };
            }
            Field::Extra { left } => match left - taken.len() as u16 {
                0 => self.enter(Field::Name),
                left => self.field = Field::Extra { left },
            },
            Field::Name if taken.ends_with(&[0]) => self.enter(Field::Comment),
            Field::Comment if taken.ends_with(&[0]) => self.enter(Field::Crc),
            Field::Crc if self.have == 2 => {
                let (is, want) = (self.crc.sum() as u16, u16::from_le_bytes([self.bytes[0], self.bytes[1]]));
                if is != want {
                    return Err(format!("has a wrong header CRC-16 (is {is:#06x}, want {want:#06x})"));
                }
                self.field = Field::Done;
            }
            Field::ExtraLen | Field::Name | Field::Comment | Field::Crc | Field::Done => {}
        }
        Ok(())
    }

    /// Moves to `field`, or to the next field that the flags announce.
    fn enter(&mut self, field: Field) {
        self.have = 0;
        let announced = |flag| self.flags & flag != 0;
        self.field = match field {
            Field::ExtraLen if !announced(Self::EXTRA) => return self.enter(Field::Name),
            Field::Name if !announced(Self::NAME) => return self.enter(Field::Comment),
            Field::Comment if !announced(Self::COMMENT) => return self.enter(Field::Crc),
            Field::Crc if !announced(Self::HCRC) => Field::Done,
            other => other,
        };
    }
}

fn wrong_crc(member: u64, is: u32, want: u32) -> String {
    format!("has a wrong CRC-32 in gzip member {member} (is {is:#010x}, want {want:#010x})")
}

fn wrong_size(member: u64, is: u64, want: u32) -> String {
    format!(
        "has a wrong size in gzip member {member} (decompresses to {} bytes, but its trailer states {} modulo 2³²)",
        with_separators(is),
        with_separators(u64::from(want))
    )
}

fn trailer_of(bytes: [u8; TRAILER]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = bytes;
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Decompresses a whole object into `out`, which is empty on entry and may have capacity.
pub(crate) fn inflate_whole(input: &[u8], out: &mut Vec<u8>, limit: u64, check: GzipCheck, place: &str) -> Result<()> {
    if let Some(last4) = input.last_chunk::<4>() {
        // Most objects have one member, so the hint is the size of the object. A wrong hint only costs a second
        // attempt.
        let plausible = (input.len() as u64).saturating_mul(MAX_OF_ONE);
        reserve(out, gzip_size_hint(*last4).min(plausible).min(limit), place)?;
    }
    match inflate_members(input, out, limit, check, true, place) {
        Ok(_) => Ok(()),
        Err(Stop::Damaged) => Err(explain(input, limit, place)),
        Err(Stop::Says(error)) => Err(error),
    }
}

/// Decompresses whole members, without padding, and appends their content to `out`; returns the number of members.
/// Produces no error text: the caller can get one from the stream decoder.
pub(crate) fn decompress_frames(input: &[u8], out: &mut Vec<u8>, limit: u64) -> Option<u64> {
    reserve(out, limit, "").ok()?;
    inflate_members(input, out, limit, GzipCheck::Full, false, "").ok()
}

/// Reason why the loop over members stopped.
enum Stop {
    /// A member is damaged; the stream decoder will find the position.
    Damaged,
    Says(Error),
}

fn inflate_members(
    input: &[u8],
    out: &mut Vec<u8>,
    limit: u64,
    check: GzipCheck,
    may_be_padded: bool,
    place: &str,
) -> Result<u64, Stop> {
    let (mut at, mut member) = (0, 1);
    loop {
        let mut walk = HeaderWalk::new();
        let header = match walk.push(&input[at..]) {
            Ok(header) if walk.done() => header,
            _ => return Err(Stop::Damaged),
        };
        let body = at + header;
        // The trailer is not part of the DEFLATE stream.
        let Some(stream) = input.len().checked_sub(TRAILER).and_then(|end| input.get(body..end)) else {
            return Err(Stop::Damaged);
        };
        let start = out.len();
        let used = inflate_member(stream, out, limit, place).map_err(Stop::Says)?.ok_or(Stop::Damaged)?;
        let end = body + used;
        let Some(trailer) = input[end..].first_chunk::<TRAILER>() else {
            return Err(Stop::Damaged);
        };
        let (crc, size) = trailer_of(*trailer);
        let made = &out[start..];
        // Do not build a message here: zlib may report damage earlier in a member than libdeflate does, and both paths
        // must give the same message. The caller gets the message from the stream decoder.
        if made.len() as u32 != size || (check == GzipCheck::Full && libdeflater::crc32(made) != crc) {
            return Err(Stop::Damaged);
        }
        at = end + TRAILER;
        match input.get(at) {
            None => return Ok(member),
            Some(0) if may_be_padded && input[at..].iter().all(|&byte| byte == 0) => return Ok(member),
            Some(_) => member += 1,
        }
    }
}

/// Decompresses one member's DEFLATE stream and appends the content to `out`. Returns the number of bytes consumed, or
/// `None` if the stream is damaged.
fn inflate_member(stream: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<Option<usize>> {
    loop {
        let start = out.len();
        // A reused buffer may have more capacity than the limit allows.
        let room = usize::try_from(limit - start as u64).unwrap_or(usize::MAX).min(out.capacity() - start);
        match inflate_raw(stream, &mut out.spare_capacity_mut()[..room]) {
            Outcome::Done { used, made } => {
                // SAFETY: libdeflate has written `made` bytes from `start` on, within the spare capacity that it was
                // given.
                unsafe { out.set_len(start + made) };
                return Ok(Some(used));
            }
            Outcome::Bad => return Ok(None),
            Outcome::NoRoom => {
                let most = (stream.len() as u64).saturating_mul(MAX_OF_ONE).saturating_add(start as u64);
                if (start + room) as u64 >= limit {
                    return Err(above_limit(limit, place));
                }
                if (start + room) as u64 > most {
                    return Ok(None);
                }
                // libdeflate decompresses the member from its start at each attempt. The capacity must therefore grow
                // by a factor to keep the total time linear.
                let wanted = (out.capacity() as u64).saturating_mul(2).max(64 << 10);
                reserve(out, wanted.min(most + 1).min(limit), place)?;
            }
        }
    }
}

/// Returns the error for input that libdeflate rejected. The stream decoder creates the error, because only this
/// decoder knows the position of the damage.
fn explain(input: &[u8], limit: u64, place: &str) -> Error {
    let (mut stream, mut passed) = (GzipStream::behind(0), Inflated { bytes_in: 0, bytes_out: 0 });
    let mut outlet = OutputWindow { place, limit, passed: &mut passed, sink: &mut |_| Ok(()) };
    match (stream.push(input, &mut outlet), stream.unfinished()) {
        (Err(error), _) => error,
        (Ok(()), Some(what)) => passed.ends_inside(place, &what),
        (Ok(()), None) => Error::corrupt(place, "is gzip data that zlib accepts but libdeflate rejects"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Body,
    Trailer,
    Between,
    Padding,
}

/// Streaming gzip decoder.
pub(crate) struct GzipStream {
    state: State,
    member: u64,
    walk: HeaderWalk,
    body: Decompress,
    crc: Crc,
    made: u64,
    trailer: [u8; TRAILER],
    have: usize,
    buffer: Box<[u8]>,
}

impl GzipStream {
    /// Creates a decoder that continues after `members` whole members.
    pub(crate) fn behind(members: u64) -> Self {
        Self {
            state: if members == 0 { State::Header } else { State::Between },
            member: members.max(1),
            walk: HeaderWalk::new(),
            body: Decompress::new(false),
            crc: Crc::new(),
            made: 0,
            trailer: [0; TRAILER],
            have: 0,
            buffer: vec![0; STREAM_BUFFER].into_boxed_slice(),
        }
    }

    pub(crate) fn push(&mut self, mut input: &[u8], outlet: &mut OutputWindow<'_>) -> Result<()> {
        while let Some(&next) = input.first() {
            let used = match self.state {
                State::Header => self.header(input, outlet)?,
                State::Body => self.inflate(input, outlet)?,
                State::Trailer => self.trailer(input, outlet)?,
                State::Between => {
                    self.state = match next {
                        0 => State::Padding,
                        _ => State::Header,
                    };
                    if next != 0 {
                        self.member += 1;
                        self.walk = HeaderWalk::new();
                    }
                    0
                }
                State::Padding => match input.iter().position(|&byte| byte != 0) {
                    None => input.len(),
                    Some(at) => {
                        return Err(outlet.corrupt(format!(
                            "has bytes after gzip member {} that are neither gzip nor zero padding (at stored byte {})",
                            self.member,
                            with_separators(outlet.bytes_in() + at as u64)
                        )));
                    }
                },
            };
            outlet.took(used);
            input = &input[used..];
        }
        Ok(())
    }

    fn header(&mut self, input: &[u8], outlet: &OutputWindow<'_>) -> Result<usize> {
        let used = self.walk.push(input).map_err(|problem| match self.member {
            1 => outlet.corrupt(format!("is not gzip: it {problem}")),
            later => outlet.corrupt(format!(
                "has bytes after gzip member {} that are not gzip (near stored byte {}: {problem})",
                later - 1,
                with_separators(outlet.bytes_in())
            )),
        })?;
        if self.walk.done() {
            self.state = State::Body;
            self.body.reset(false);
            self.crc = Crc::new();
            self.made = 0;
        }
        Ok(used)
    }

    fn inflate(&mut self, input: &[u8], outlet: &mut OutputWindow<'_>) -> Result<usize> {
        let mut used = 0;
        loop {
            let (before_in, before_out) = (self.body.total_in(), self.body.total_out());
            let status = self.body.decompress(&input[used..], &mut self.buffer, FlushDecompress::None);
            let took = (self.body.total_in() - before_in) as usize;
            let made = (self.body.total_out() - before_out) as usize;
            let bad = |reason: &str| {
                outlet.corrupt(format!(
                    "is damaged in gzip member {} near stored byte {}: {reason} (inflated {} bytes so far)",
                    self.member,
                    with_separators(outlet.bytes_in() + (used + took) as u64),
                    with_separators(outlet.bytes_out() + made as u64)
                ))
            };
            let status = status.map_err(|error| bad(error.message().unwrap_or("invalid DEFLATE data")))?;
            let stuck = took == 0 && made == 0 && status != Status::StreamEnd;
            if stuck && used < input.len() {
                return Err(bad("the decoder makes no progress"));
            }
            used += took;
            self.made += made as u64;
            let made = &self.buffer[..made];
            self.crc.update(made);
            outlet.emit(made)?;
            if status == Status::StreamEnd {
                self.state = State::Trailer;
                self.have = 0;
                return Ok(used);
            }
            // If the buffer is full, more output may be pending even if the input is used up.
            if stuck || (used == input.len() && made.len() < self.buffer.len()) {
                return Ok(used);
            }
        }
    }

    fn trailer(&mut self, input: &[u8], outlet: &OutputWindow<'_>) -> Result<usize> {
        let used = input.len().min(TRAILER - self.have);
        self.trailer[self.have..self.have + used].copy_from_slice(&input[..used]);
        self.have += used;
        if self.have == TRAILER {
            let (crc, size) = trailer_of(self.trailer);
            if self.made as u32 != size {
                return Err(outlet.corrupt(wrong_size(self.member, self.made, size)));
            }
            if self.crc.sum() != crc {
                return Err(outlet.corrupt(wrong_crc(self.member, self.crc.sum(), crc)));
            }
            self.state = State::Between;
        }
        Ok(used)
    }

    /// Returns the name of the structure that would be incomplete if the stream ended here, if any.
    pub(crate) fn unfinished(&self) -> Option<String> {
        match self.state {
            State::Between | State::Padding => None,
            State::Header => Some(format!("the header of gzip member {}", self.member)),
            State::Body => Some(format!("gzip member {}", self.member)),
            State::Trailer => Some(format!("the trailer of gzip member {}", self.member)),
        }
    }
}
