"""Wide-area training: sites train one model each as they like, and exchange updates over slow links."""
