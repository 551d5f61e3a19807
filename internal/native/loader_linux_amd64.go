//go:build !purego

package native

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loaderPath is the path of glibc's dynamic loader in the ABI of x86-64.
const loaderPath = "/lib64/ld-linux-x86-64.so.2"

const pageSize = 4096

// maxLoader bounds the memory that the dynamic loader asks for.
const maxLoader = 64 << 20

type loaded struct{ base, entry uintptr }

// mapLoader maps the segments of the dynamic loader as the kernel does for a program.
func mapLoader(path string) (loaded, error) {
	f, err := os.Open(path)
	if err != nil {
		return loaded{}, err
	}
	defer f.Close()
	file, err := elf.NewFile(f)
	if err != nil {
		return loaded{}, fmt.Errorf("%s: %w", path, err)
	}
	if file.Class != elf.ELFCLASS64 || file.Machine != elf.EM_X86_64 || file.Type != elf.ET_DYN {
		return loaded{}, fmt.Errorf("%s is not a shared object of x86-64", path)
	}
	end := uint64(0)
	for _, s := range file.Progs {
		if s.Type != elf.PT_LOAD {
			continue
		}
		if s.Filesz > s.Memsz || s.Memsz > maxLoader || s.Vaddr > maxLoader || s.Off%pageSize != s.Vaddr%pageSize {
			return loaded{}, fmt.Errorf("%s: a segment of %d bytes at %#x", path, s.Memsz, s.Vaddr)
		}
		end = max(end, s.Vaddr+s.Memsz)
	}
	if end == 0 || file.Entry >= end {
		return loaded{}, fmt.Errorf("%s has no entry", path)
	}
	base, err := mapAt(nil, uintptr(end+pageSize), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON, -1, 0)
	if err != nil {
		return loaded{}, err
	}
	for _, s := range file.Progs {
		if s.Type == elf.PT_LOAD {
			if err := mapSegment(base, s, int(f.Fd())); err != nil {
				return loaded{}, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return loaded{base, base + uintptr(file.Entry)}, nil
}

// mapSegment maps one segment: pages of the file, then zeroes up to its size in memory.
func mapSegment(base uintptr, s *elf.Prog, fd int) error {
	prot := 0
	for flag, p := range map[elf.ProgFlag]int{elf.PF_R: unix.PROT_READ, elf.PF_W: unix.PROT_WRITE, elf.PF_X: unix.PROT_EXEC} {
		if s.Flags&flag != 0 {
			prot |= p
		}
	}
	within := s.Vaddr % pageSize // of its first page
	start, fileEnd, end := base+uintptr(s.Vaddr-within), base+uintptr(s.Vaddr+s.Filesz), base+uintptr(s.Vaddr+s.Memsz)
	if _, err := mapAt(at[byte](start), fileEnd-start, prot, unix.MAP_PRIVATE|unix.MAP_FIXED, fd, int64(s.Off-within)); err != nil {
		return err
	}
	if end == fileEnd {
		return nil
	}
	lastPage := (fileEnd + pageSize - 1) &^ (pageSize - 1)
	if prot&unix.PROT_WRITE != 0 {
		clear(unsafe.Slice(at[byte](fileEnd), lastPage-fileEnd))
	}
	if end <= lastPage {
		return nil
	}
	_, err := mapAt(at[byte](lastPage), end-lastPage, prot, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED, -1, 0)
	return err
}

// mapMemory maps zeroed memory outside the Go heap.
func mapMemory(n int) (uintptr, error) {
	return mapAt(nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE, -1, 0)
}

func mapAt(where *byte, n uintptr, prot, flags, fd int, offset int64) (uintptr, error) {
	p, err := unix.MmapPtr(fd, offset, unsafe.Pointer(where), n, prot, flags)
	return uintptr(p), err
}

// linkedDynamically reports whether this process has a dynamic loader already, and with it a libc.
func linkedDynamically() (bool, error) {
	auxv, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if len(auxv)%16 != 0 {
		return false, errors.New("native: /proc/self/auxv is cut off")
	}
	for ; len(auxv) > 0; auxv = auxv[16:] {
		if binary.LittleEndian.Uint64(auxv) == atLoaderBase {
			return binary.LittleEndian.Uint64(auxv[8:]) != 0, nil
		}
	}
	return false, nil
}
