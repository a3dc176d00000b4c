// SPDX-License-Identifier: Apache-2.0
//! Tests that decompressing an object in runs of frames gives the same content and errors as decompressing it whole,
//! even if its headers contain wrong lengths.

use penstock_codec::{
    Codec, FrameRunSize, Inflated, StreamDecoder, compress, decompress_frames, decompress_into, split_frames,
};
use penstock_types::Result;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const LIMIT: u64 = 16 << 20;
const COMPRESSED: [Codec; 3] = [Codec::Gzip, Codec::Zstd, Codec::Lz4];

fn small() -> FrameRunSize {
    FrameRunSize { stored: 300, content: 2_000 }
}

/// Decompresses like a real caller: run by run, and with the stream decoder from the first run that is not valid.
/// Returns the content and the number of valid runs.
fn apart(codec: Codec, stored: &[u8], window: usize, size: FrameRunSize, limit: u64) -> Result<(Vec<u8>, usize)> {
    let (mut out, mut buffer, mut at, mut blocks, mut held) = (Vec::new(), Vec::new(), 0, 0, 0);
    'windows: while at < stored.len() {
        let end = stored.len().min(at + window);
        let stretches = split_frames(codec, &stored[at..end], end == stored.len(), size);
        if stretches.is_empty() {
            break;
        }
        for stretch in stretches {
            let room = stretch.content.min(limit - out.len() as u64);
            let Some(more) = decompress_frames(codec, &stored[at..at + stretch.stored], &mut buffer, room) else {
                break 'windows;
            };
            out.extend_from_slice(&buffer);
            (at, blocks, held) = (at + stretch.stored, blocks + more, held + 1);
        }
    }
    let passed = Inflated { bytes_in: at as u64, bytes_out: out.len() as u64 };
    let mut rest = StreamDecoder::resume_at(codec, limit, "p", passed, blocks);
    rest.push(&stored[at..], &mut |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })?;
    rest.finish()?;
    Ok((out, held))
}

fn whole(codec: Codec, stored: &[u8], limit: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    decompress_into(codec, stored, &mut out, limit, "p").map(|()| out)
}

/// Compresses like bgzip(1): members of at most 64 KiB that contain their length, and an empty member at the end.
fn bgzf(content: &[u8], block: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in content.chunks(block).chain([&[][..]]) {
        let member = compress(Codec::Gzip, piece, 6).unwrap();
        let size = (member.len() + 8 - 1) as u16;
        out.extend([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, b'B', b'C', 2, 0]);
        out.extend(size.to_le_bytes());
        out.extend(&member[10..]);
    }
    out
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 21) as u8 & 0x3f).collect()
}

fn members() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let run = (any::<u8>(), 0..3000usize).prop_map(|(byte, len)| vec![byte; len]);
    let noise = proptest::collection::vec(any::<u8>(), 0..800);
    proptest::collection::vec(prop_oneof![run, noise], 1..12)
}

proptest! {
    // Store regressions beside this file: for an integration test, proptest finds no library directory to store them
    // in.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    /// With many frames and any window size, the content is correct. With a window over the whole object, the runs
    /// cover all of it.
    #[test]
    fn prop_apart_is_the_whole(members in members(), codec in prop::sample::select(&COMPRESSED[..]), window in 4_000..20_000usize) {
        let stored: Vec<u8> = members.iter().flat_map(|member| compress(codec, member, codec.default_level()).unwrap()).collect();
        let plain = members.concat();
        let (out, held) = apart(codec, &stored, window, small(), LIMIT).unwrap();
        prop_assert!(out == plain);
        let (out, _) = apart(codec, &stored, window, small(), plain.len() as u64).unwrap();
        prop_assert!(out == plain);
        if window >= stored.len() {
            let covered: usize = split_frames(codec, &stored, true, small()).iter().map(|stretch| stretch.stored).sum();
            prop_assert_eq!((covered, held > 0), (stored.len(), true));
        }
        if let Some(less) = (plain.len() as u64).checked_sub(1) {
            prop_assert!(apart(codec, &stored, window, small(), less).unwrap_err().to_string().contains("more than the limit"));
        }
    }

    /// Damage at any position, including lengths and sizes, gives the same result as whole-object decompression. For
    /// gzip, the error messages are equal too.
    #[test]
    fn prop_damage_is_met_as_the_whole_meets_it(
        members in members(), codec in prop::sample::select(&COMPRESSED[..]), at: prop::sample::Index, flip in 1..=255u8,
        cut: prop::sample::Index, is_cut: bool, window in 64..9_000usize, is_bgzf: bool,
    ) {
        let mut stored: Vec<u8> = match is_bgzf && codec == Codec::Gzip {
            true => bgzf(&members.concat(), 700),
            false => members.iter().flat_map(|member| compress(codec, member, codec.default_level()).unwrap()).collect(),
        };
        match is_cut {
            true => stored.truncate(cut.index(stored.len())),
            false => { let at = at.index(stored.len()); stored[at] ^= flip }
        }
        let (one, other) = (whole(codec, &stored, LIMIT), apart(codec, &stored, window, small(), LIMIT));
        match (one, other) {
            (Ok(one), Ok((other, _))) => prop_assert!(one == other),
            (Err(one), Err(other)) if codec == Codec::Gzip => prop_assert_eq!(one.to_string(), other.to_string()),
            (Err(_), Err(_)) => {}
            (one, other) => prop_assert!(false, "{:?} {:?}", one.map(|v| v.len()), other.map(|v| v.0.len())),
        }
    }

    #[test]
    fn prop_noise_never_panics(codec in prop::sample::select(&COMPRESSED[..]), mut stored in prop::collection::vec(any::<u8>(), 0..400), is_end: bool) {
        let head = compress(codec, b"", codec.default_level()).unwrap();
        let len = stored.len().min(4);
        stored[..len].copy_from_slice(&head[..len]);
        let stretches = split_frames(codec, &stored, is_end, small());
        prop_assert!(stretches.iter().map(|stretch| stretch.stored).sum::<usize>() <= stored.len());
        prop_assert!(stretches.iter().all(|stretch| stretch.stored > 0));
    }
}

#[test]
fn bgzf_is_taken_apart_by_its_own_account() {
    let plain = content(900_000);
    let stored = bgzf(&plain, 60_000);
    let size = FrameRunSize { stored: 1 << 20, content: 200_000 };
    let stretches = split_frames(Codec::Gzip, &stored, true, size);
    assert_eq!(
        stretches.iter().map(|stretch| stretch.content).collect::<Vec<_>>(),
        [240_000, 240_000, 240_000, 180_000]
    );
    assert_eq!(stretches.iter().map(|stretch| stretch.stored).sum::<usize>(), stored.len());
    // A window that ends inside a member gives the runs of the complete members.
    let cut = split_frames(Codec::Gzip, &stored[..stored.len() / 2], false, size);
    assert!(!cut.is_empty() && stretches.starts_with(&cut[..cut.len() - 1]));
    assert_eq!(apart(Codec::Gzip, &stored, 100_000, size, LIMIT).unwrap().0, plain);
}

#[test]
fn gzip_that_holds_gzip_is_not_fooled() {
    // Incompressible content is stored uncompressed, so a gzip header inside it looks like the start of a member.
    let inner = compress(Codec::Gzip, &content(50_000), 6).unwrap();
    let outer = compress(Codec::Gzip, &[inner.as_slice(), &inner, &inner].concat(), 0).unwrap();
    assert!(split_frames(Codec::Gzip, &outer, true, small()).len() > 1, "the guess is wrong, as it was meant to be");
    let (out, held) = apart(Codec::Gzip, &outer, 1 << 20, small(), LIMIT).unwrap();
    assert_eq!((out == [inner.as_slice(), &inner, &inner].concat(), held), (true, 0));
}

#[test]
fn apart_ends_before_what_is_no_block() {
    for codec in COMPRESSED {
        let block = compress(codec, &content(5_000), codec.default_level()).unwrap();
        let stored = [block.as_slice(), &block, b"trailing words"].concat();
        let (one, other) = (whole(codec, &stored, LIMIT), apart(codec, &stored, 1 << 20, small(), LIMIT));
        assert_eq!(one.unwrap_err().to_string(), other.unwrap_err().to_string());
    }
    // Zero bytes after the last member are padding.
    let member = compress(Codec::Gzip, &content(5_000), 6).unwrap();
    let stored = [member.as_slice(), &member, &[0; 600]].concat();
    assert_eq!(apart(Codec::Gzip, &stored, 1 << 20, small(), LIMIT).unwrap().0.len(), 10_000);
    // Zero bytes between members are an error.
    let stored = [member.as_slice(), &[0; 600], &member].concat();
    assert!(apart(Codec::Gzip, &stored, 1 << 20, small(), LIMIT).is_err());
}

#[test]
fn frames_of_the_reference_tools_are_taken_apart() {
    // Frames from the streaming encoder contain no size. A skippable frame (such as a seek table) follows them.
    let plain = content(400_000);
    let frames: Vec<u8> = plain.chunks(100_000).flat_map(|piece| zstd::stream::encode_all(piece, 3).unwrap()).collect();
    let stored = [frames.as_slice(), &[0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]].concat();
    let stretches = split_frames(Codec::Zstd, &stored, true, small());
    assert_eq!(stretches.iter().map(|stretch| stretch.stored).sum::<usize>(), stored.len());
    assert!(stretches.len() >= 4);
    assert_eq!(apart(Codec::Zstd, &stored, 1 << 20, small(), LIMIT).unwrap(), (plain, stretches.len()));
}
