// Command verify downloads all programs that are pinned for the demo, and fails if one of them is not what its pin says.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/stack-controller/stack-controller/tests/tools/prebuilt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := prebuilt.Verify(ctx, func(line string) { fmt.Println(line) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}
