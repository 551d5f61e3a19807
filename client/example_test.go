package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/shoal-llm/shoal/client"
)

// Submit a job and print its text while the server generates it. With the same key the program attaches
// to the same job, also after a restart of the server.
func ExampleClient_Watch() {
	ctx := context.Background()
	c := client.New("http://127.0.0.1:8080", os.Getenv("SHOAL_API_KEY"))
	job, err := c.Submit(ctx, "report-8", map[string]any{"prompt": "Once upon a time", "max_tokens": 400})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range c.Watch(ctx, job.ID, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(event.Text)
	}
}

// Print the nodes of a cluster with their shares of the weights.
func ExampleClient_Cluster() {
	state, err := client.New("http://127.0.0.1:8080", "").Cluster(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range state.Nodes {
		fmt.Printf("%s is %s with %.0f%% of the weights\n", n.ID, n.State, 100*n.Share)
	}
}

// Move the work of a node away before its machine is stopped. An error of the server has its
// status and code.
func ExampleClient_Drain() {
	var refused *client.Error
	err := client.New("http://127.0.0.1:8080", "").Drain(context.Background(), "m2")
	if errors.As(err, &refused) {
		fmt.Println(refused.Status, refused.Code)
	}
}
