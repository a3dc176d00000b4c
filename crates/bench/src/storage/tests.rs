// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::time::Duration;

use penstock_types::{Error, Result};

use super::*;
use crate::{Histogram, Schedule};

fn spec(path: &Path) -> StorageSpec {
    StorageSpec {
        path: path.to_owned(),
        threads: 3,
        directories: 2,
        files: 4,
        file_size: 20_000,
        block_size: 8192,
        depth: 1,
        engine: Engine::Threads,
        pattern: Pattern::Sequential,
        direct: false,
        fsync: true,
        verify: None,
        compressible: 0,
        time_limit_s: None,
        io_limit: None,
        repeat: false,
        arrivals: Schedule::Closed,
        rate: None,
        seed: 9,
        write_shared: false,
        start_at_s: None,
    }
}

fn run(spec: &StorageSpec, phase: Phase) -> Result<PhaseReport> {
    PhaseJob::start(spec.clone(), phase)?.wait(Duration::from_secs(60)).expect("a phase of a few kilobytes ends")
}

fn files_of(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(folder).unwrap() {
        for directory in std::fs::read_dir(thread.unwrap().path()).unwrap() {
            for file in std::fs::read_dir(directory.unwrap().path()).unwrap() {
                found.push(std::fs::read(file.unwrap().path()).unwrap());
            }
        }
    }
    found
}

#[test]
fn test_storage_phases_make_read_and_leave_nothing() {
    for engine in [Engine::Threads, Engine::IoUring] {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            let dir = tempfile::tempdir().unwrap();
            let depth = if engine == Engine::IoUring { 3 } else { 1 };
            let spec = StorageSpec { engine, pattern, depth, verify: Some(77), ..spec(dir.path()) };
            assert_eq!(run(&spec, Phase::Mkdirs).unwrap().last.total.entries, 6);
            let wrote = run(&spec, Phase::Write).unwrap();
            assert_eq!((wrote.last.total.entries, wrote.last.total.ios, wrote.last.total.bytes), (24, 72, 480_000));
            assert_eq!((wrote.entry_latency.count, wrote.io_latency.count), (24, 72));
            assert!(files_of(dir.path()).iter().all(|bytes| bytes.len() == 20_000));
            let read = run(&spec, Phase::Read).unwrap();
            assert_eq!((read.verified_bytes, read.last.total.bytes), (480_000, 480_000));
            assert!(read.first.seconds <= read.last.seconds && read.first.total.ios <= 72);
            assert_eq!(run(&spec, Phase::Stat).unwrap().last.total.entries, 24);
            assert_eq!(run(&spec, Phase::Delete).unwrap().last.total.entries, 24);
            assert_eq!(run(&spec, Phase::Rmdirs).unwrap().last.total.entries, 6);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn test_storage_verify_names_the_file_and_the_byte() {
    for (engine, depth) in [(Engine::Threads, 1), (Engine::IoUring, 4)] {
        let dir = tempfile::tempdir().unwrap();
        let spec = StorageSpec { engine, depth, verify: Some(1), ..spec(dir.path()) };
        run(&spec, Phase::Mkdirs).unwrap();
        run(&spec, Phase::Write).unwrap();
        let file = dir.path().join("t00001/d00001/f0000003");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[10_001] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let error = run(&spec, Phase::Read).unwrap_err().to_string();
        assert!(error.contains("t00001/d00001/f0000003") && error.contains("byte 10,001"), "{error}");
        std::fs::write(&file, &bytes[..9_000]).unwrap();
        let error = run(&spec, Phase::Read).unwrap_err().to_string();
        // With several reads in flight, a read that begins beyond the end may be reported first.
        assert!(error.contains("t00001/d00001/f0000003 ends at byte "), "{error}");
        assert_eq!(run(&spec, Phase::Stat).unwrap_err().code(), "corrupt");
    }
}

#[test]
fn test_storage_content_does_not_compress_unless_asked() {
    let share = |compressible: u32| {
        let dir = tempfile::tempdir().unwrap();
        let spec =
            StorageSpec { compressible, threads: 1, directories: 1, files: 1, file_size: 1 << 20, ..spec(dir.path()) };
        run(&spec, Phase::Mkdirs).unwrap();
        run(&spec, Phase::Write).unwrap();
        let bytes = files_of(dir.path()).remove(0);
        bytes.iter().filter(|byte| **byte == 0).count() as f64 / bytes.len() as f64
    };
    assert!(share(0) < 0.01);
    assert!((share(75) - 0.75).abs() < 0.02);
}

#[test]
fn test_storage_shared_file_write_needs_flag() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    std::fs::write(&file, vec![1; 100_000]).unwrap();
    let spec = StorageSpec { file_size: 0, block_size: 4096, ..spec(&file) };
    let read = run(&spec, Phase::Read).unwrap();
    assert_eq!(read.last.total.bytes, 24 * 4096);
    assert_eq!(run(&spec, Phase::Write).unwrap_err().code(), "config");
    assert_eq!(std::fs::read(&file).unwrap(), vec![1; 100_000]);
    assert_eq!(run(&spec, Phase::Mkdirs).unwrap_err().code(), "config");
    let spec = StorageSpec { write_shared: true, verify: Some(4), pattern: Pattern::Random, ..spec };
    run(&spec, Phase::Write).unwrap();
    assert_eq!(run(&spec, Phase::Read).unwrap().verified_bytes, 24 * 4096);
    assert_eq!(std::fs::read(&file).unwrap()[24 * 4096..], vec![1; 100_000 - 24 * 4096]);
}

#[test]
fn test_storage_limits_end_a_phase_and_say_so() {
    for (engine, depth) in [(Engine::Threads, 1), (Engine::IoUring, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let base = StorageSpec { engine, depth, threads: 2, fsync: false, ..spec(dir.path()) };
        run(&base, Phase::Mkdirs).unwrap();
        run(&base, Phase::Write).unwrap();
        let counted = run(&StorageSpec { io_limit: Some(7), repeat: true, ..base.clone() }, Phase::Read).unwrap();
        assert_eq!((counted.last.total.ios, counted.ended_by), (14, Some("ios")));
        let timed = StorageSpec { time_limit_s: Some(0.3), repeat: true, ..base.clone() };
        let timed = run(&timed, Phase::Read).unwrap();
        assert_eq!(timed.ended_by, Some("time"));
        assert!(timed.last.total.ios > 48 && !timed.series.is_empty());
    }
}

#[test]
fn test_storage_open_loop_keeps_its_rate_and_counts_from_the_intended_start() {
    for (engine, depth) in [(Engine::Threads, 1), (Engine::IoUring, 4)] {
        for arrivals in [Schedule::Constant, Schedule::Poisson] {
            let dir = tempfile::tempdir().unwrap();
            let open = StorageSpec {
                engine,
                depth,
                arrivals,
                rate: Some(500.0),
                time_limit_s: Some(1.0),
                repeat: true,
                fsync: false,
                ..spec(dir.path())
            };
            run(&spec(dir.path()), Phase::Mkdirs).unwrap();
            run(&spec(dir.path()), Phase::Write).unwrap();
            let report = run(&open, Phase::Read).unwrap();
            // The upper limit is the offered load. A busy machine may complete fewer requests.
            assert!((1..=620).contains(&report.last.total.ios), "{:?}", report.last);
            let (response, service) = (report.io_latency, report.service_latency.unwrap());
            assert_eq!(response.count, service.count);
            assert!(response.sum_us >= service.sum_us);
        }
    }
}

#[test]
fn test_storage_cancelled_phase_ends_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let base = spec(dir.path());
    run(&base, Phase::Mkdirs).unwrap();
    run(&base, Phase::Write).unwrap();
    let endless = StorageSpec { repeat: true, time_limit_s: Some(1e6), ..base };
    let job = PhaseJob::start(endless, Phase::Read).unwrap();
    job.cancel();
    assert_eq!(job.wait(Duration::from_secs(60)).unwrap().unwrap_err(), Error::Interrupted);
}

#[test]
fn test_storage_impossible_specs_are_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let good = spec(dir.path());
    let bad = [
        ("--threads", StorageSpec { threads: 0, ..good.clone() }),
        ("--depth", StorageSpec { depth: 8, ..good.clone() }),
        ("--block-size", StorageSpec { block_size: 32_768, ..good.clone() }),
        ("--block-size", StorageSpec { block_size: 0, ..good.clone() }),
        ("--file-size", StorageSpec { direct: true, ..good.clone() }),
        ("--compressible", StorageSpec { compressible: 101, ..good.clone() }),
        ("--repeat-io", StorageSpec { repeat: true, ..good.clone() }),
        ("--files", StorageSpec { files: 1 << 40, file_size: 1 << 40, ..good.clone() }),
        ("--rate", StorageSpec { rate: Some(10.0), ..good.clone() }),
        ("--arrivals", StorageSpec { arrivals: Schedule::Poisson, ..good.clone() }),
        ("--duration", StorageSpec { time_limit_s: Some(f64::NAN), ..good.clone() }),
        ("--start-at", StorageSpec { start_at_s: Some(1.0), ..good.clone() }),
    ];
    for (what, spec) in bad {
        let phase = if what == "--file-size" { Phase::Write } else { Phase::Mkdirs };
        match run(&spec, phase) {
            Err(Error::Config { what: named, .. }) => assert_eq!(named, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let nowhere = StorageSpec { path: dir.path().join("none"), ..good };
    assert_eq!(run(&nowhere, Phase::Write).unwrap_err().code(), "not-found");
}

#[test]
fn test_storage_failing_write_ends_all_threads_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let base = spec(dir.path());
    run(&base, Phase::Mkdirs).unwrap();
    // A folder has the name of a file that one thread will write.
    std::fs::create_dir(dir.path().join("t00002/d00000/f0000001")).unwrap();
    let error = run(&base, Phase::Write).unwrap_err();
    assert!(error.to_string().contains("f0000001"), "{error}");
}

#[test]
fn test_storage_histograms_of_a_report_merge() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(&spec(dir.path()), Phase::Mkdirs).unwrap();
    assert_eq!(Histogram::of(&report.entry_latency).unwrap().count(), 6);
}
