// SPDX-License-Identifier: Apache-2.0
//! Fuzzes JSON and Parquet manifests: every panic is caught, and a parsed manifest survives a round trip.
#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;
use penstock_dataset::Manifest;

static QUIET: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    // The Parquet reader panics on bad input and its caller catches that. libFuzzer's panic hook would abort the
    // process first, so it is replaced.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let result = std::panic::catch_unwind(|| {
        if let Ok(manifest) = Manifest::from_bytes(data, "m") {
            let again = Manifest::from_bytes(&manifest.to_parquet().unwrap(), "m").unwrap();
            assert_eq!(again.objects.len(), manifest.objects.len());
            assert_eq!(again.fingerprint(&[]), manifest.fingerprint(&[]));
        }
    });
    if result.is_err() {
        std::process::abort();
    }
});
