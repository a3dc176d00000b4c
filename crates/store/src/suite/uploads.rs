// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of multipart uploads, for stores that support them.

use bytes::Bytes;
use penstock_types::{Algorithm, Digest, Key};

use super::{Fixture, pattern};
use crate::{MultipartStore, ObjectRef, ObjectWriter, Part, PartSpec, Precondition, PutOptions, UploadId, checksum};

/// Returns the bytes of an object and the ranges of its parts: two parts of the minimum size and a shorter last part.
fn cut(multipart: &dyn MultipartStore) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    let part = multipart.limits().part_bytes(300 << 10, 0) as usize;
    let bytes = pattern(2 * part + 1234);
    let cuts = vec![0..part, part..2 * part, 2 * part..bytes.len()];
    (bytes, cuts)
}

async fn send(
    fixture: &Fixture,
    key: &Key,
    id: &UploadId,
    bytes: &[u8],
    cuts: &[std::ops::Range<usize>],
    number: usize,
) -> Part {
    let Some(multipart) = fixture.store.multipart() else { panic!("the store has no multipart uploads") };
    let cut = cuts[number].clone();
    let ends = (cut.end == bytes.len()).then(|| checksum::crc32c(bytes));
    let at = PartSpec { number: number as u32, offset: cut.start as u64, ends };
    // Send the part in two buffers, because a store must accept a part that consists of several buffers.
    let (a, b) = bytes[cut.clone()].split_at(cut.len() / 3);
    let pieces = vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)];
    let part = fixture.ok(multipart.put_part(key, id, &at, pieces, fixture.deadline()).await);
    assert_eq!((part.number, part.size), (number as u32, cut.len() as u64));
    assert_eq!(part.crc32c, checksum::crc32c(&bytes[cut]));
    part
}

pub(super) async fn upload_in_parts_is_one_object_at_its_end(fixture: &Fixture) {
    let Some(multipart) = fixture.store.multipart() else { return };
    let (key, (bytes, cuts)) = (fixture.key("in parts é"), cut(multipart));
    let options = PutOptions {
        precondition: Precondition::Absent,
        encoding: Some("x-pattern".to_owned()),
        ..PutOptions::default()
    };
    let id = fixture.ok(multipart.create(&key, &options, fixture.deadline()).await);
    let mut parts = Vec::new();
    for number in 0..cuts.len() {
        let error =
            fixture.store.head(&key, fixture.deadline()).await.expect_err("the object exists before its upload ends");
        assert_eq!(error.code(), "not-found", "{error}");
        parts.push(send(fixture, &key, &id, &bytes, &cuts, number).await);
    }
    let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    assert_eq!(checksum::combined(&parts), Some(crc.clone()));
    let md5 = checksum::of_parts(Algorithm::Md5, &[Bytes::from(bytes.clone())]).unwrap_or_else(|| panic!("no MD5"));
    let made = multipart.complete(&key, &id, &parts, &[crc, md5], &options, fixture.deadline()).await;
    let made = fixture.ok(made);
    let head = fixture.ok(fixture.store.head(&key, fixture.deadline()).await);
    assert_eq!((head.size, &head.version), (bytes.len() as u64, &made.version));
    assert_eq!(head.encoding.as_deref(), Some("x-pattern"));
    let got = fixture.ok(crate::read_whole(&*fixture.store, &ObjectRef::current(key), None, fixture.deadline()).await);
    assert!(got.1 == bytes);
    if fixture.store.capabilities().checksums {
        assert!(checksum::cheapest(&got.0.digests).is_some(), "{:?}", got.0.digests);
    }
}

pub(super) async fn upload_again_sends_only_what_is_not_held(fixture: &Fixture) {
    let Some(multipart) = fixture.store.multipart() else { return };
    let (key, (bytes, cuts)) = (fixture.key("again"), cut(multipart));
    let options = PutOptions::default();
    let id = fixture.ok(multipart.create(&key, &options, fixture.deadline()).await);
    let first = send(fixture, &key, &id, &bytes, &cuts, 0).await;
    // Simulate another process that has read the upload ID and the list of parts from a journal.
    let id = UploadId(id.0.clone());
    let mut parts = fixture.ok(multipart.list_parts(&key, &id, std::slice::from_ref(&first), fixture.deadline()).await);
    assert_eq!(parts, [first]);
    for number in 1..cuts.len() {
        parts.push(send(fixture, &key, &id, &bytes, &cuts, number).await);
    }
    let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    fixture.ok(multipart.complete(&key, &id, &parts, &[crc], &options, fixture.deadline()).await);
    assert!(fixture.whole(&key).await == bytes);
}

pub(super) async fn upload_aborted_leaves_nothing(fixture: &Fixture) {
    let Some(multipart) = fixture.store.multipart() else { return };
    let (key, (bytes, cuts)) = (fixture.key("aborted"), cut(multipart));
    let id = fixture.ok(multipart.create(&key, &PutOptions::default(), fixture.deadline()).await);
    send(fixture, &key, &id, &bytes, &cuts, 0).await;
    fixture.ok(multipart.abort(&key, &id, fixture.deadline()).await);
    fixture.ok(multipart.abort(&key, &id, fixture.deadline()).await);
    assert!(fixture.keys(&fixture.key(""), None).await.is_empty());
}

pub(super) async fn upload_over_a_new_object_is_refused(fixture: &Fixture) {
    let Some(multipart) = fixture.store.multipart() else { return };
    let (key, (bytes, cuts)) = (fixture.key("raced"), cut(multipart));
    let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    let id = fixture.ok(multipart.create(&key, &options, fixture.deadline()).await);
    let mut parts = Vec::new();
    for number in 0..cuts.len() - 1 {
        parts.push(send(fixture, &key, &id, &bytes, &cuts, number).await);
    }
    fixture.put(&key, b"another writer's").await;
    let last = cuts.len() - 1;
    let at = PartSpec { number: last as u32, offset: cuts[last].start as u64, ends: Some(checksum::crc32c(&bytes)) };
    let piece = vec![Bytes::copy_from_slice(&bytes[cuts[last].clone()])];
    let outcome = match multipart.put_part(&key, &id, &at, piece, fixture.deadline()).await {
        Err(error) => Err(error),
        Ok(part) => {
            parts.push(part);
            let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
            multipart.complete(&key, &id, &parts, &[crc], &options, fixture.deadline()).await
        }
    };
    let error = outcome.expect_err("an upload replaced another writer's object");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(fixture.whole(&key).await, b"another writer's");
    fixture.ok(multipart.abort(&key, &id, fixture.deadline()).await);
}

pub(super) async fn writer_object_appears_whole_at_its_end(fixture: &Fixture) {
    let part = fixture.store.multipart().map_or(1 << 20, |uploads| uploads.limits().part_bytes(16 << 20, 0)) as usize;
    for (name, size) in [("written in one", 1234), ("written in parts", part + 77), ("written empty", 0)] {
        let (key, bytes) = (fixture.key(name), pattern(size));
        let options = PutOptions::default();
        let writer =
            || ObjectWriter::new(fixture.store.clone(), key.clone(), size as u64, options.clone(), fixture.deadline());
        let mut dropped = writer();
        fixture.ok(dropped.write(&bytes).await);
        dropped.abort().await;
        let mut short = writer();
        if size > 0 {
            fixture.ok(short.write(&bytes[1..]).await);
            short.finish().await.expect_err("the object ends early");
        }
        fixture.store.head(&key, fixture.deadline()).await.expect_err("the object exists before its end");
        let mut writer = writer();
        for piece in bytes.chunks(999_999) {
            fixture.ok(writer.write(piece).await);
        }
        writer.write(b"more").await.expect_err("the object has more bytes than stated");
        fixture.ok(writer.finish().await);
        let got =
            fixture.ok(crate::read_whole(&*fixture.store, &ObjectRef::current(key), None, fixture.deadline()).await);
        assert!(got.1 == bytes, "{name}");
    }
}
