package credentials

// Audience is whom a token is for that is sent to the agent of the Workspace. No other agent, and not the API server,
// accepts such a token: what one agent received is worth nothing elsewhere.
func Audience(namespace, name string) string {
	return "auto.pulumi.com/workspaces/" + namespace + "/" + name
}
