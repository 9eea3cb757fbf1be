//! A data path at work in the proxy's namespace, as the process would run it.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use proxy::data_path::{
    ApplyError, DataPath,
    ebpf::{EbpfOptions, EbpfPath},
    nftables::NftPath,
};
use proxy_rules::{RuleTable, Snapshot};
use proxy_testbed::Topology;

/// Makes a data path; called in its namespace.
pub(crate) type Make = fn() -> Box<dyn DataPath>;

pub(crate) fn ebpf() -> Box<dyn DataPath> {
    Box::new(EbpfPath::new(EbpfOptions::default()))
}

pub(crate) fn nftables() -> Box<dyn DataPath> {
    Box::new(NftPath::new())
}

type Work = Box<dyn FnOnce(&mut dyn DataPath) + Send>;

/// Owns the path on a thread in the namespace, and does its regular work there.
pub(crate) struct Driver {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(crate) fn new(topology: &Topology, make: Make) -> Self {
        let (work, todo) = channel::<Work>();
        let thread = topology.proxy.enter(|| {
            // A thread inherits its maker's namespace.
            std::thread::spawn(move || {
                let mut path = make();
                loop {
                    match todo.recv_timeout(Duration::from_millis(200)) {
                        Ok(work) => work(path.as_mut()),
                        Err(RecvTimeoutError::Timeout) => path.maintain().unwrap(),
                        Err(RecvTimeoutError::Disconnected) => return path.remove().unwrap(),
                    }
                }
            })
        });
        Self { work: Some(work), thread: Some(thread) }
    }

    /// Does something with the path on its thread.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn DataPath) -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = channel();
        let work: Work = Box::new(move |path| _ = answer.send(work(path)));
        self.work.as_ref().unwrap().send(work).unwrap();
        answered.recv().unwrap()
    }

    pub(crate) fn try_apply(&self, table: &RuleTable) -> Result<(), ApplyError> {
        let table = table.clone();
        self.with(move |path| path.apply(&table))
    }

    pub(crate) fn apply(&self, table: &RuleTable) {
        self.try_apply(table).unwrap();
    }

    pub(crate) fn counters(&self) -> Snapshot {
        self.with(|path| path.counters()).unwrap()
    }

    pub(crate) fn remove(&self) {
        self.with(|path| path.remove()).unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the data path's thread has panicked");
        }
    }
}

/// Whether this machine's tests are told to do without the kernel.
pub(crate) fn skipped() -> bool {
    let skip = std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
    }
    skip
}

/// Each body as a test on each path of packets, or on a path that is named with what makes it.
macro_rules! on_each_path {
    ($($name:ident),+ $(,)?) => {
        on_each_path!(ebpf = crate::driver::ebpf: $($name),+);
        on_each_path!(nftables = crate::driver::nftables: $($name),+);
    };
    ($path:ident = $make:path: $($name:ident),+ $(,)?) => {
        mod $path {
            $(#[test]
            fn $name() {
                if !crate::driver::skipped() {
                    super::$name($make);
                }
            })+
        }
    };
}
pub(crate) use on_each_path;
