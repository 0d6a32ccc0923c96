package app

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// bypassProxy adds the API server and the names of Services to NO_PROXY: a proxy cannot reach them. Flux writes these names with a dot at
// their end, which an entry without the dot does not match. Everything that sends HTTP reads the variable at its first request, so this is
// called before.
func bypassProxy(clusterDomain string) error {
	hosts := []string{".svc", ".svc.", "." + clusterDomain, "." + clusterDomain + "."}
	if server := os.Getenv("KUBERNETES_SERVICE_HOST"); server != "" {
		hosts = append(hosts, server)
	}
	if configured := cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")); configured != "" {
		hosts = append([]string{configured}, hosts...)
	}
	if err := os.Setenv("NO_PROXY", strings.Join(hosts, ",")); err != nil {
		return fmt.Errorf("set NO_PROXY: %w", err)
	}
	return nil
}
