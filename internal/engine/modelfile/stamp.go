package modelfile

import (
	"io/fs"
	"time"
)

// Stamp identifies a state of a file without reading it. The kernel updates the times of a file
// before its first byte changes. So bytes read between two equal stamps belong to the first.
type Stamp struct {
	Size     int64
	Modified int64  // in nanoseconds since 1970
	Changed  int64  // like Modified, of the inode: no process can set it; 0 if the system has none
	Device   uint64 // 0 if the system has none
	Inode    uint64 // like Device
}

// StampOf returns the stamp of a result of Stat.
func StampOf(st fs.FileInfo) Stamp {
	s := Stamp{Size: st.Size(), Modified: st.ModTime().UnixNano()}
	s.addInode(st)
	return s
}

// Settled reports whether any change of the file from now on gives another stamp. A file system
// counts time in steps, so two changes within one step cannot be distinguished.
func (s Stamp) Settled(now time.Time) bool {
	step := 50 * time.Millisecond // several ticks of a kernel's clock
	if s.Modified%int64(time.Second) == 0 && s.Changed%int64(time.Second) == 0 {
		step = 2 * time.Second // a file system that counts seconds, or pairs of them
	}
	return now.UnixNano()-max(s.Modified, s.Changed) > int64(step)
}
