// Embedding runs a cluster inside this program and streams one completion.
//
//	go run ./examples/embedding -sockets 2 "func add(a, b int) int {"
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"

	"github.com/shoal-llm/shoal/cluster"
)

func main() {
	model := flag.String("model", "models/fry", "model folder or .gguf file")
	sockets := flag.Int("sockets", 2, "ranks of the tensor-parallel group; the answer is the same for any number")
	tokens := flag.Int("tokens", 32, "most tokens of the answer")
	flag.Parse()
	prompt := strings.Join(flag.Args(), " ")
	if prompt == "" {
		log.Fatal("give a text to continue, for example \"func add(a, b int) int {\"")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *model, *sockets, *tokens, prompt); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, model string, sockets, most int, prompt string) error {
	c, err := cluster.New(ctx, cluster.LocalConfig{
		Sockets:  sockets,
		KVBudget: 64 << 20, // bytes of cache for each socket
		Serve:    cluster.ServeConfig{Model: model, Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	text, err := cluster.LoadTokenizer(model)
	if err != nil {
		return err
	}
	request := cluster.NewRequest("example", text.Encode(prompt, true), most)
	request.Sampling.Temperature = 0
	events, err := c.Submit(ctx, request)
	if err != nil {
		return err
	}
	var answer []int32
	for e := range events { // one for each token; the last has a reason
		if e.Err != nil {
			return e.Err
		}
		if e.Token != cluster.NoToken {
			answer = append(answer, e.Token)
		}
	}
	fmt.Println(text.Decode(answer, true))
	return nil
}
