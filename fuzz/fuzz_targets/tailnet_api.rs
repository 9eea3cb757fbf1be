//! See the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::tailnet_api(data));
