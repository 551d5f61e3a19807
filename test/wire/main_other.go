//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "wire: needs Linux: hosts are network namespaces")
	os.Exit(1)
}
