// Gen compiles the kernels to PTX with NVRTC, NVIDIA's run-time compiler:
//
//	go run ./internal/engine/cuda/kernels/gen -nvrtc FOLDER/libnvrtc.so.12
//
// The Python package nvidia-cuda-nvrtc-cu12 (12.0.140) has the library. Its version decides the
// oldest driver that reads the PTX. No card is needed.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/native"
)

func main() {
	library := flag.String("nvrtc", "libnvrtc.so.12", "path of NVRTC")
	to := flag.String("o", "internal/engine/cuda/kernels", "folder of kernels.ptx.gz")
	text := flag.String("text", "", "file for the PTX as text, for ptxas")
	flag.Parse()
	if err := run(*library, *to, *text); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(library, folder, text string) error {
	lib, err := native.Open(library)
	if err != nil {
		return err
	}
	ptx, err := compile(lib)
	if err != nil {
		return err
	}
	head := kernels.Head(kernels.SourceHash())
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = z.Write(append([]byte(head), ptx...))
	if err := errors.Join(err, z.Close()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "kernels.ptx.gz"), packed.Bytes(), 0o644); err != nil {
		return err
	}
	if text == "" {
		return nil
	}
	return os.WriteFile(text, append([]byte(head), ptx...), 0o644)
}

// compile calls NVRTC. Its strings stay in a table of byte slices until the end.
func compile(lib *native.Library) ([]byte, error) {
	call := func(name string, args ...uintptr) error {
		f, err := lib.Func(name)
		if err != nil {
			return err
		}
		if code := int32(f.Call(args...)); code != 0 {
			text, _ := lib.Func("nvrtcGetErrorString")
			return fmt.Errorf("%s: %s", name, native.String(text.Call(uintptr(code))))
		}
		return nil
	}
	var memory cStrings
	headers, names := []uintptr{}, []uintptr{}
	for _, name := range kernels.SourceNames() {
		headers = append(headers, memory.add(kernels.Source(name)))
		names = append(names, memory.add(name))
	}
	var program uintptr
	err := call("nvrtcCreateProgram", uintptr(unsafe.Pointer(&program)), memory.add(kernels.Source(kernels.Main)), memory.add(kernels.Main),
		uintptr(len(names)), uintptr(unsafe.Pointer(&headers[0])), uintptr(unsafe.Pointer(&names[0])))
	if err != nil {
		return nil, err
	}
	var options []uintptr
	for _, o := range kernels.Options {
		options = append(options, memory.add(o))
	}
	compiled := call("nvrtcCompileProgram", program, uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])))
	log, err := memory.result(call, program, "nvrtcGetProgramLog")
	if compiled != nil {
		return nil, errors.Join(compiled, errors.New(string(log)), err)
	}
	fmt.Fprint(os.Stderr, string(log))
	return memory.result(call, program, "nvrtcGetPTX")
}

// cStrings holds strings of C for the length of the program.
type cStrings struct{ all [][]byte }

func (s *cStrings) add(text string) uintptr {
	b := append([]byte(text), 0)
	s.all = append(s.all, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// result reads a text with the function get, and its size with get+"Size".
func (s *cStrings) result(call func(string, ...uintptr) error, program uintptr, get string) ([]byte, error) {
	var n uintptr
	if err := call(get+"Size", program, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	b := make([]byte, max(n, 1))
	err := call(get, program, uintptr(unsafe.Pointer(&b[0])))
	return slices.Clip([]byte(strings.TrimRight(string(b), "\x00"))), err
}
