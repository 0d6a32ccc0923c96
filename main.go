// stack-controller reconciles Pulumi stacks with the artifacts of Flux sources.
package main

import (
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/internal/app"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "dev"

func main() {
	os.Exit(app.Main(ctrl.SetupSignalHandler(), version, os.Args[1:], os.Stdout, os.Stderr))
}
