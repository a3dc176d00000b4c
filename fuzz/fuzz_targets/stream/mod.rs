// SPDX-License-Identifier: Apache-2.0
//! Checks that hold for every compressed stream: no panic, output within the limit, and the same output however the
//! input is split into pieces or into runs of frames.

use penstock_codec::{Codec, Inflated, StreamDecoder, FrameRunSize, decompress_frames, decompress_into, split_frames};

pub const LIMIT: u64 = 1 << 16;

fn inflate<'a>(codec: Codec, pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut inflater = StreamDecoder::new(codec, LIMIT, "p");
    for piece in pieces {
        let pushed = inflater.push(piece, &mut |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        });
        assert!(out.len() as u64 <= LIMIT);
        pushed.ok()?;
    }
    inflater.finish().ok().map(|_| out)
}

/// The first byte of `data` sets the piece size.
pub fn check(codec: Codec, data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let at_once = inflate(codec, [data].into_iter());
    assert!(inflate(codec, data.chunks(usize::from(cut) + 1)) == at_once);
    let mut out = Vec::new();
    let whole = decompress_into(codec, data, &mut out, LIMIT, "p");
    assert_eq!(whole.is_ok(), at_once.is_some(), "{whole:?}");
    assert!(inflate_stretches(codec, data, usize::from(cut)) == at_once);
    if let Some(at_once) = at_once {
        assert!(out == at_once);
    }
}

/// Decompresses runs of frames until one fails, and the rest as a stream.
fn inflate_stretches(codec: Codec, data: &[u8], size: usize) -> Option<Vec<u8>> {
    let (mut out, mut buffer, mut at, mut blocks) = (Vec::new(), Vec::new(), 0, 0);
    for stretch in split_frames(codec, data, true, FrameRunSize { stored: size, content: size as u64 * 4 }) {
        let room = stretch.content.min(LIMIT - out.len() as u64);
        let Some(more) = decompress_frames(codec, &data[at..at + stretch.stored], &mut buffer, room) else { break };
        assert!(buffer.len() as u64 <= room);
        out.extend_from_slice(&buffer);
        (at, blocks) = (at + stretch.stored, blocks + more);
    }
    let passed = Inflated { bytes_in: at as u64, bytes_out: out.len() as u64 };
    let mut rest = StreamDecoder::resume_at(codec, LIMIT, "p", passed, blocks);
    let pushed = rest.push(&data[at..], &mut |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    });
    pushed.and_then(|()| rest.finish()).ok().map(|_| out)
}
