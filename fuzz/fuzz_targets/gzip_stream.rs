// SPDX-License-Identifier: Apache-2.0
//! A gzip object in pieces: no panic, no more than the limit, and how it is cut changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::{Codec, Inflater, inflate_into};

const LIMIT: u64 = 1 << 16;

fn inflate<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut inflater = Inflater::new(Codec::Gzip, LIMIT, "p");
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

fuzz_target!(|data: &[u8]| {
    let Some((&cut, data)) = data.split_first() else { return };
    let at_once = inflate([data].into_iter());
    assert!(inflate(data.chunks(usize::from(cut) + 1)) == at_once);
    let mut out = Vec::new();
    let whole = inflate_into(Codec::Gzip, data, &mut out, LIMIT, "p");
    assert_eq!(whole.is_ok(), at_once.is_some(), "{whole:?}");
    if let Some(at_once) = at_once {
        assert!(out == at_once);
    }
});
