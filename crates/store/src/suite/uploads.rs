// SPDX-License-Identifier: Apache-2.0
//! Conformance of multipart uploads, for stores that support them.

use bytes::Bytes;
use penstock_types::{Algorithm, Digest, Key};

use super::{Bench, pattern};
use crate::{MultipartStore, ObjectRef, Part, PartSpec, Precondition, PutOptions, UploadId, checksum};

/// Bytes of an object, and how they are cut: two parts of the shortest, and a bit.
fn cut(door: &dyn MultipartStore) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    let part = door.terms().part_bytes(300 << 10, 0) as usize;
    let bytes = pattern(2 * part + 1234);
    let cuts = vec![0..part, part..2 * part, 2 * part..bytes.len()];
    (bytes, cuts)
}

async fn send(
    bench: &Bench,
    key: &Key,
    id: &UploadId,
    bytes: &[u8],
    cuts: &[std::ops::Range<usize>],
    number: usize,
) -> Part {
    let Some(door) = bench.store.uploads() else { panic!("no uploads") };
    let cut = cuts[number].clone();
    let ends = (cut.end == bytes.len()).then(|| checksum::crc32c(bytes));
    let at = PartSpec { number: number as u32, offset: cut.start as u64, ends };
    // In two pieces: no store may take a part for one buffer.
    let (a, b) = bytes[cut.clone()].split_at(cut.len() / 3);
    let pieces = vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)];
    let part = bench.ok(door.part(key, id, &at, pieces, bench.deadline()).await);
    assert_eq!((part.number, part.size), (number as u32, cut.len() as u64));
    assert_eq!(part.crc32c, checksum::crc32c(&bytes[cut]));
    part
}

pub(super) async fn upload_in_parts_is_one_object_at_its_end(bench: &Bench) {
    let Some(door) = bench.store.uploads() else { return };
    let (key, (bytes, cuts)) = (bench.key("in parts é"), cut(door));
    let options = PutOptions {
        precondition: Precondition::Absent,
        encoding: Some("x-pattern".to_owned()),
        ..PutOptions::default()
    };
    let id = bench.ok(door.begin(&key, &options, bench.deadline()).await);
    let mut parts = Vec::new();
    for number in 0..cuts.len() {
        let error = bench.store.head(&key, bench.deadline()).await.expect_err("it is there before its end");
        assert_eq!(error.code(), "not-found", "{error}");
        parts.push(send(bench, &key, &id, &bytes, &cuts, number).await);
    }
    let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    assert_eq!(checksum::combined(&parts), Some(crc.clone()));
    let md5 = checksum::of_parts(Algorithm::Md5, &[Bytes::from(bytes.clone())]).unwrap_or_else(|| panic!("no MD5"));
    let made = door.finish(&key, &id, &parts, &[crc, md5], &options, bench.deadline()).await;
    let made = bench.ok(made);
    let head = bench.ok(bench.store.head(&key, bench.deadline()).await);
    assert_eq!((head.size, &head.version), (bytes.len() as u64, &made.version));
    assert_eq!(head.encoding.as_deref(), Some("x-pattern"));
    let got = bench.ok(crate::read_whole(&*bench.store, &ObjectRef::current(key), None, bench.deadline()).await);
    assert!(got.1 == bytes);
    if bench.store.capabilities().checksums {
        assert!(checksum::cheapest(&got.0.digests).is_some(), "{:?}", got.0.digests);
    }
}

pub(super) async fn upload_again_sends_only_what_is_not_held(bench: &Bench) {
    let Some(door) = bench.store.uploads() else { return };
    let (key, (bytes, cuts)) = (bench.key("again"), cut(door));
    let options = PutOptions::default();
    let id = bench.ok(door.begin(&key, &options, bench.deadline()).await);
    let first = send(bench, &key, &id, &bytes, &cuts, 0).await;
    // Another process, which has the id and the list of parts from a journal.
    let id = UploadId(id.0.clone());
    let mut parts = bench.ok(door.held(&key, &id, std::slice::from_ref(&first), bench.deadline()).await);
    assert_eq!(parts, [first]);
    for number in 1..cuts.len() {
        parts.push(send(bench, &key, &id, &bytes, &cuts, number).await);
    }
    let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    bench.ok(door.finish(&key, &id, &parts, &[crc], &options, bench.deadline()).await);
    assert!(bench.whole(&key).await == bytes);
}

pub(super) async fn upload_aborted_leaves_nothing(bench: &Bench) {
    let Some(door) = bench.store.uploads() else { return };
    let (key, (bytes, cuts)) = (bench.key("aborted"), cut(door));
    let id = bench.ok(door.begin(&key, &PutOptions::default(), bench.deadline()).await);
    send(bench, &key, &id, &bytes, &cuts, 0).await;
    bench.ok(door.abort(&key, &id, bench.deadline()).await);
    bench.ok(door.abort(&key, &id, bench.deadline()).await);
    assert!(bench.keys(&bench.key(""), None).await.is_empty());
}

pub(super) async fn upload_over_a_new_object_is_refused(bench: &Bench) {
    let Some(door) = bench.store.uploads() else { return };
    let (key, (bytes, cuts)) = (bench.key("raced"), cut(door));
    let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    let id = bench.ok(door.begin(&key, &options, bench.deadline()).await);
    let mut parts = Vec::new();
    for number in 0..cuts.len() - 1 {
        parts.push(send(bench, &key, &id, &bytes, &cuts, number).await);
    }
    bench.put(&key, b"another writer's").await;
    let last = cuts.len() - 1;
    let at = PartSpec { number: last as u32, offset: cuts[last].start as u64, ends: Some(checksum::crc32c(&bytes)) };
    let piece = vec![Bytes::copy_from_slice(&bytes[cuts[last].clone()])];
    let outcome = match door.part(&key, &id, &at, piece, bench.deadline()).await {
        Err(error) => Err(error),
        Ok(part) => {
            parts.push(part);
            let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
            door.finish(&key, &id, &parts, &[crc], &options, bench.deadline()).await
        }
    };
    let error = outcome.expect_err("it was written over another's");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(bench.whole(&key).await, b"another writer's");
    bench.ok(door.abort(&key, &id, bench.deadline()).await);
}
