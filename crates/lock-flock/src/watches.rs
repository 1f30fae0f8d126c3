//! The files that the waiters of one backend watch, where the kernel reports closed files.

pub(crate) use imp::{Watch, Watches};

#[cfg(target_os = "linux")]
mod imp {
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::thread;

    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
    use rustix::io::Errno;
    use tokio::sync::Notify;

    use crate::file_name::Paths;

    /// The files that the waiters of one backend watch, by one inotify instance: by default, all programs of a user have 128.
    ///
    /// A thread reads the events, as a runtime may be paused. It lasts for as long as somebody watches.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Watches(Arc<Mutex<Option<Instance>>>);

    #[derive(Debug)]
    struct Instance {
        inotify: Arc<OwnedFd>,
        /// By the number of the watched file.
        waiters: HashMap<i32, Vec<Arc<Notify>>>,
    }

    /// Notifies one waiter when one of the files of a lock is closed, changed or deleted.
    ///
    /// # Drop
    ///
    /// Dropping it ends the watch.
    #[derive(Debug)]
    pub(crate) struct Watch {
        watches: Watches,
        notify: Arc<Notify>,
        files: Vec<i32>,
    }

    impl Watches {
        /// From now on no event of these files is missed. They must exist.
        pub(crate) fn watch(&self, paths: &Paths) -> io::Result<Watch> {
            // Dropped after the mutex is unlocked, which its destructor locks.
            let mut watch = Watch { watches: self.clone(), notify: Arc::default(), files: Vec::new() };
            let mut instance = self.lock();
            if let Some(instance) = &mut *instance {
                instance.add(paths, &mut watch)?;
            } else {
                let mut new = Instance::new()?;
                new.add(paths, &mut watch)?;
                new.serve(self)?;
                *instance = Some(new);
            }
            drop(instance);
            Ok(watch)
        }

        fn lock(&self) -> MutexGuard<'_, Option<Instance>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Reads events until nobody watches.
        fn read(&self, inotify: &OwnedFd) {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = Reader::new(inotify, &mut buffer);
            loop {
                let (file, what) = match events.next() {
                    Ok(event) => (event.wd(), event.events()),
                    Err(Errno::INTR) => continue,
                    // Waiters look once a second then.
                    Err(_) => break,
                };
                let mut instance = self.lock();
                match &mut *instance {
                    Some(instance) => instance.notify(file, what),
                    None => break,
                }
                if instance.as_ref().is_some_and(|instance| instance.waiters.is_empty()) {
                    // Before anybody else can begin to watch by this instance.
                    *instance = None;
                    return;
                }
            }
            *self.lock() = None;
        }
    }

    impl Instance {
        fn new() -> io::Result<Self> {
            Ok(Self { inotify: Arc::new(init(CreateFlags::CLOEXEC)?), waiters: HashMap::new() })
        }

        fn serve(&self, watches: &Watches) -> io::Result<()> {
            let (watches, inotify) = (watches.clone(), Arc::clone(&self.inotify));
            let thread = thread::Builder::new().name("flock-watch".into());
            thread.spawn(move || watches.read(&inotify)).map(drop)
        }

        fn add(&mut self, paths: &Paths, watch: &mut Watch) -> io::Result<()> {
            // A closed file is an unlocked one. A downgrade changes its times.
            let events = WatchFlags::CLOSE_WRITE
                | WatchFlags::CLOSE_NOWRITE
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF;
            for path in [&paths.lock, &paths.turn] {
                // The same number for the same file.
                let file = add_watch(&self.inotify, path, events)?;
                self.waiters.entry(file).or_default().push(Arc::clone(&watch.notify));
                watch.files.push(file);
            }
            Ok(())
        }

        fn remove(&mut self, file: i32, notify: &Arc<Notify>) {
            let Entry::Occupied(mut waiters) = self.waiters.entry(file) else { return };
            // The number may be that of a file of a later instance, which others watch.
            waiters.get_mut().retain(|waiter| !Arc::ptr_eq(waiter, notify));
            if waiters.get().is_empty() {
                waiters.remove();
                // The kernel reports this as the last event, by which the thread finds that nobody watches. It has done so
                // already if the file is gone.
                let _ = remove_watch(&self.inotify, file);
            }
        }

        fn notify(&mut self, file: i32, what: ReadFlags) {
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.waiters.values().flatten().for_each(|waiter| waiter.notify_one());
            }
            self.waiters.get(&file).into_iter().flatten().for_each(|waiter| waiter.notify_one());
            if what.contains(ReadFlags::IGNORED) {
                self.waiters.remove(&file);
            }
        }
    }

    impl Watch {
        /// Waits for an event since the last call.
        ///
        /// # Cancel safety
        ///
        /// This method is cancel safe.
        pub(crate) async fn notified(&self) {
            self.notify.notified().await;
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            if let Some(instance) = &mut *self.watches.lock() {
                self.files.iter().for_each(|file| instance.remove(*file, &self.notify));
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::io;

    use crate::file_name::Paths;

    /// Nothing is reported here.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Watches;

    #[derive(Debug)]
    pub(crate) enum Watch {}

    impl Watches {
        pub(crate) fn watch(&self, _: &Paths) -> io::Result<Watch> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    impl Watch {
        pub(crate) async fn notified(&self) {
            match *self {}
        }
    }
}
