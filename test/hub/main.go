// Command hub serves one folder as a repository of a model hub on loopback, for trying and timing
// `shoal pull` without a network: it prints HF_ENDPOINT=URL and serves until it is interrupted.
//
//	go run ./test/hub org/name FOLDER
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 || strings.Count(os.Args[1], "/") != 1 {
		log.Fatal("usage: hub org/name FOLDER")
	}
	entries, err := os.ReadDir(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	repo := &hubtest.Repo{Files: map[string][]byte{}, LFS: map[string]bool{}, Fixed: true}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(os.Args[2], e.Name()))
		if err != nil {
			log.Fatal(err)
		}
		repo.Files[e.Name()] = content
		repo.LFS[e.Name()] = strings.HasSuffix(e.Name(), ".safetensors") || strings.HasSuffix(e.Name(), ".gguf")
	}
	h := hubtest.Start()
	defer h.Close()
	h.Lock()
	h.Repos[os.Args[1]] = repo
	h.Unlock()
	fmt.Println("HF_ENDPOINT=" + h.URL)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
}
