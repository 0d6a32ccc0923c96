// Command install builds the tools that are given as arguments, or all of them without arguments, and prints their paths.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/stack-controller/stack-controller/tests/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	names := os.Args[1:]
	if len(names) == 0 {
		names = tools.Names()
	}
	for _, name := range names {
		path, err := tools.Path(ctx, name, func(line string) { fmt.Fprintln(os.Stderr, line) })
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(path)
	}
}
