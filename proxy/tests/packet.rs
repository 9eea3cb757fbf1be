//! The kernel programs asked about single packets (`BPF_PROG_TEST_RUN`). Needs CAP_BPF and CAP_NET_ADMIN; with
//! SKIP_KERNEL_TESTS=1 it says so and does nothing.
#![cfg(test)]

/// Ends the test where the machine's tests are told to do without the kernel.
macro_rules! kernel_or_skip {
    () => {
        if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
            eprintln!("skipped: SKIP_KERNEL_TESTS=1");
            return;
        }
    };
}

#[path = "packet/budget.rs"]
mod budget;
#[path = "packet/differential.rs"]
mod differential;
#[path = "packet/error.rs"]
mod error;
#[path = "packet/flow.rs"]
mod flow;
#[path = "packet/fragment.rs"]
mod fragment;
#[path = "packet/garbage.rs"]
mod garbage;
#[path = "packet/random.rs"]
mod random;
#[path = "packet/refuse.rs"]
mod refuse;
#[path = "packet/support.rs"]
mod support;
#[path = "packet/translate.rs"]
mod translate;
