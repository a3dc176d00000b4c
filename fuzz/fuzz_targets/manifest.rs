// SPDX-License-Identifier: Apache-2.0
//! Manifests, JSON and Parquet: no panic gets out, and what was read can be written and read again.
#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;
use penstock_dataset::Manifest;

static QUIET: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    // The Parquet reader asserts, and its caller catches: libFuzzer's own hook would end the process first.
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
